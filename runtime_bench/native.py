"""Artifacts that hold the graph that a runtime made for one machine: how one is loaded, and where it may run.

A file that the runtime optimized to the end is loaded with its optimizer off. Where that file holds weights in the
layout of one kind of processor, another kind reads them wrong without an error; and operators of the runtime's inside
belong to one release. The manifest says what a file is bound to, under ``run.native``, by the path of the artifact.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from runtime_bench.errors import VerifyFailure
from runtime_bench.machine import environment, isa
from runtime_bench.sums import shown

BLOCKS = {"x86_64": (("avx512f", 16), ("", 8))}
"""By architecture: a feature, and how many channels onnxruntime puts side by side where the processor has it; the
first that fits. Architectures that are not here have one such number for all processors."""

REMEDY = "Build it again on this machine, or for a named profile (edgeopt targets list), whose files are not bound"


class Bound(NamedTuple):
    """What a file is bound to; None where it is not.

    Attributes:
        arch: architecture, as Linux spells it.
        block: channels side by side in blocked weights.
        releases: exact release by backend.
    """

    arch: Optional[str]
    block: Optional[int]
    releases: Mapping[str, str]


class Native(NamedTuple):
    """One entry of ``run.native``: options of the runner for this artifact alone, and what it is bound to."""

    options: Mapping[str, str]
    bound: Bound


def parse(entry: Mapping[str, Any]) -> Optional[Native]:
    """An entry of the manifest; None when it is not as it should be. Unknown keys of ``bound`` are refused.

    A key that this program does not know may stand for something that this machine is not.
    """
    options, bound = entry.get("options", {}), entry.get("bound", {})
    if not isinstance(options, dict) or not isinstance(bound, dict):
        return None
    arch, block, rest = (
        bound.get("arch"),
        bound.get("block"),
        {k: bound[k] for k in bound if k not in ("arch", "block")},
    )
    if not isinstance(arch, (str, type(None))) or not isinstance(block, (int, type(None))) or isinstance(block, bool):
        return None
    if not all(isinstance(text, str) for text in [*rest, *rest.values()]):
        return None
    return Native({str(key): str(value) for key, value in options.items()}, Bound(arch, block, rest))


def block_of(arch: str, flags: Optional[Sequence[str]]) -> Optional[int]:
    """Channels side by side in blocked weights on such a processor.

    None where the architecture has one number for all, or where the features cannot be read.
    """
    if flags is None:
        return None
    return next((size for feature, size in BLOCKS.get(arch, ()) if not feature or feature in flags), None)


def words(bound: Bound) -> str:
    """For a reader: "x86_64 with avx512f (blocks of 16 channels), onnxruntime 1.32.0"; empty where nothing is bound."""
    parts = [] if bound.arch is None else [_kind(bound.arch, bound.block)]
    parts += ["{} {}".format(shown(name), shown(bound.releases[name])) for name in sorted(bound.releases)]
    return ", ".join(parts)


def require_machine(native: Mapping[str, Native], root: str = "/") -> None:
    """Raise VerifyFailure (9) when an artifact is bound to another kind of processor than this one."""
    if not any(one.bound.arch for one in native.values()):
        return
    described = environment.describe(root)
    here, flags = isa.architecture(described["machine"]), described["flags"]
    for path in sorted(native):
        bound = native[path].bound
        if bound.arch is None:
            continue
        block = block_of(here, flags)
        if here == bound.arch and (bound.block is None or block == bound.block):
            continue
        found = _kind(here, block)
        if here == bound.arch and block is None:
            found += ", whose features cannot be read"
        text = "{} is built for {} and computes wrong numbers elsewhere; this machine is {}"
        raise VerifyFailure(9, text.format(shown(path), _kind(bound.arch, bound.block), found), REMEDY)


def require_release(native: Mapping[str, Native], backend: str, version: str, key: Any) -> None:
    """Raise VerifyFailure (9) when an artifact is bound to another release of ``backend`` than ``version``.

    Args:
        key: makes versions comparable.
    """
    for path in sorted(native):
        wanted = native[path].bound.releases.get(backend)
        if wanted is not None and key(wanted) != key(version):
            text = "{} holds operators inside {} {} and runs in no other release; here is {}"
            remedy = "{}, or install that release: pip install {}".format(REMEDY, _requirement(backend, wanted))
            raise VerifyFailure(9, text.format(shown(path), backend, shown(wanted), shown(version)), remedy)


def _kind(arch: str, block: Optional[int]) -> str:
    rows: Tuple[Tuple[str, int], ...] = BLOCKS.get(arch, ())
    if block is None:
        return shown(arch)
    features = [feature for feature, size in rows if size == block]
    others = [feature for feature, size in rows if size != block and feature]
    having = " with " + features[0] if features and features[0] else ""
    lacking = " without " + others[0] if others and not having else ""
    return "{}{}{} (blocks of {} channels)".format(shown(arch), having, lacking, block)


def _requirement(backend: str, version: str) -> str:
    return "{}=={}".format(backend, version) if re.fullmatch(r"[\w.]+", version) else backend
