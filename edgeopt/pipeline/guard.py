"""The guard's account: every limit on quality with its figure, and the worst samples, before and after."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from edgeopt import quality
from edgeopt.pipeline.data import Sets, probed
from edgeopt.quality import Limit, Quality, WorstSample
from edgeopt.target import Budget

Json = dict[str, Any]

FOLDER = "worst"
"""Where the pictures lie in a bundle."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """What the guard has to say: keys of the manifest's ``quality``, and pictures by path in the bundle."""

    section: Json
    pictures: Mapping[str, bytes]


def account(
    seen: Mapping[str, Quality], default: str, refused: Mapping[str, str], sets: Sets, budget: Budget
) -> Account:
    """Limits and worst samples of what ships, and of what was built and does not hold the limits.

    Args:
        seen: the comparison with the model as loaded, by precision.
        default: precision of what ships.
        refused: why the gate refused a precision.
    """
    stored = _positions(sets)
    pictures: dict[str, bytes] = {}

    def of(precision: str) -> Json:
        found = seen[precision]
        rows = [_sample(sample, precision, stored, pictures) for sample in found.worst]
        return {"limits": [_limit(limit) for limit in quality.limits(found, budget)], "worst": rows}

    section = of(default)
    section["refused"] = [{"precision": p, "reason": why, **of(p)} for p, why in refused.items() if p in seen]
    section["golden"] = _golden(sets)
    return Account(section=section, pictures=pictures)


def _golden(sets: Sets) -> Json | None:
    """Which samples the bundle holds as golden ones; None where they are noise, or there are none."""
    source = sets.evaluation or sets.calibration
    if source is None or not sets.probes or not sets.probes_are_real:
        return None
    return {"set": source.name, "sha256": source.digest(), "positions": list(probed(source))}


def _positions(sets: Sets) -> list[tuple[int, str | None]]:
    """For each sample that judges its position in the set, from 0, and its file where it is one."""
    found = sets.evaluation
    if found is None:
        return []
    names = found.stored if found.kind in ("images", "folder") else ()
    return [(k, names[k] if k < len(names) else None) for k in sets.evaluation_positions()]


def _sample(
    sample: WorstSample, precision: str, stored: list[tuple[int, str | None]], pictures: dict[str, bytes]
) -> Json:
    row = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample) if f.name not in ("picture", "index")}
    position, name = stored[sample.index] if sample.index < len(stored) else (sample.index, None)
    path = None
    if sample.picture is not None:
        path = f"{FOLDER}/{position:06d}.png"
        pictures[path] = sample.picture
    row |= {
        "index": position,
        "name": name,
        "element": list(sample.element),
        "picture": path,
        "sqnr_db": _decibels(sample.sqnr_db),
    }
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}


def _limit(limit: Limit) -> Json:
    row = dataclasses.asdict(limit)
    if limit.unit == "dB":
        row["measured"] = _decibels(limit.measured)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in row.items()}


def _decibels(value: float) -> float | str | None:
    """As in a diary: null where there is no error, ``"-inf"`` where there is nothing else."""
    return value if math.isfinite(value) else None if value > 0 else "-inf"
