"""Device profiles: TOML in, frozen values out. Budgets are re-exported beside them."""

from __future__ import annotations

from edgeopt.budget import Budget, parse_budget
from edgeopt.target.library import check_target, list_targets, load_target
from edgeopt.target.machine import host_target
from edgeopt.target.share import share_dir
from edgeopt.target.types import BACKENDS, FACTS, SCHEMA, Fact, Int8Scheme, Target, TargetInfo, target_dict
from edgeopt.target.wheels import wheel

__all__ = [
    "BACKENDS",
    "FACTS",
    "SCHEMA",
    "Budget",
    "Fact",
    "Int8Scheme",
    "Target",
    "TargetInfo",
    "check_target",
    "host_target",
    "list_targets",
    "load_target",
    "parse_budget",
    "share_dir",
    "target_dict",
    "wheel",
]
