"""The record of a build: the diary (what each step did) and the lock (what was decided, to be replayed)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from edgeopt.bundle.layout import canonical, load_json, read_text
from edgeopt.errors import BundleError
from edgeopt.memory import Footprint
from edgeopt.plan import Drift, Point, Status, Step, StepResult

LOCK_SCHEMA = "edgeopt.lock/1"
_STATUS = get_args(Status)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided about one step. ``reason_code`` is a fixed word, ``found`` a search's own choice: no figures."""

    kind: str
    name: str
    params: Mapping[str, object]
    status: Status
    reason_code: str = ""
    found: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lock:
    """Everything a build needs to give the same bytes again.

    Attributes:
        source_sha256: digest of the model file.
        target: name of the target.
        toolchain: version by name, of all that has an influence on the bytes.
        data: digest of each set by its role (``calibration``, ``evaluation``); scales and golden samples come from it.
    """

    source_sha256: str
    target: str
    toolchain: Mapping[str, str]
    decisions: tuple[Decision, ...]
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check_data(self, now: Mapping[str, str]) -> None:
        """Refuse sets that are not those of the lock.

        Raises:
            BundleError: a set is missing, is another one, or was not there.
        """
        for role in sorted({*self.data, *now}):
            old, new = self.data.get(role), now.get(role)
            if old != new:
                article = "an" if role[0] in "aeiou" else "a"
                here = "none" if new is None else "one" if old is None else "another"
                made = "without" if old is None else "with"
                raise BundleError(
                    f"the lock was made {made} {article} {role} set, and here there is {here}",
                    remedy="Give the sets of that build with --calib and --eval, or build without --locked.",
                )

    def toolchain_changes(self, now: Mapping[str, str]) -> tuple[str, ...]:
        """What differs from the versions ``now``, as ``"onnx 1.22.0 -> 1.23.0"``."""
        names = sorted({*self.toolchain, *now})
        pairs = [(name, self.toolchain.get(name, "absent"), now.get(name, "absent")) for name in names]
        return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


def decisions(results: Iterable[StepResult], reason_codes: Mapping[str, str] | None = None) -> tuple[Decision, ...]:
    """The decisions in a diary. ``reason_codes`` holds the fixed word by step name, where there is one."""
    codes = reason_codes or {}
    return tuple(
        Decision(
            kind=result.step.kind,
            name=result.step.name,
            params=dict(result.step.params),
            status=result.status,
            reason_code=codes.get(result.step.name, ""),
            found=dict(result.found),
        )
        for result in results
    )


def lock_text(lock: Lock) -> bytes:
    """The file ``decisions.lock``: canonical JSON and a newline, the same bytes for the same decisions."""
    return canonical({"schema": LOCK_SCHEMA, **dataclasses.asdict(lock)}) + b"\n"


def read_lock(path: Path, *, source_sha256: str | None = None, target: str | None = None) -> Lock:
    """Read a lock file, or the one of the bundle in the folder ``path``.

    Args:
        source_sha256: digest of the model that is to be built; None for no check.
        target: name of the target that is built for; None for no check.

    Raises:
        BundleError: no lock, a damaged or newer one, or one of another model or target.
    """
    file = path / "decisions.lock" if path.is_dir() else path
    if not file.exists():
        raise BundleError(f"{file} does not exist", remedy="Name a bundle, or the decisions.lock of one.")
    row = load_json(read_text(file), file.name)
    schema = row.get("schema") if isinstance(row, dict) else None
    if schema != LOCK_SCHEMA:
        newer = str(schema).startswith("edgeopt.lock/")
        text = (
            f"{file.name} was written by a newer edgeopt ({schema})"
            if newer
            else f"{file.name} is not a lock of edgeopt"
        )
        raise BundleError(text, remedy="Update edgeopt." if newer else "Name the decisions.lock of a bundle.")
    lock = _lock(row, file.name)
    again = "Build without the lock to make new decisions."
    if source_sha256 is not None and lock.source_sha256 != source_sha256:
        text = f"{file.name} is of another model: sha256 {lock.source_sha256[:12]}, not {source_sha256[:12]}"
        raise BundleError(text, remedy=again)
    if target is not None and lock.target != target:
        raise BundleError(f"{file.name} is of the target {lock.target!r}, not {target!r}", remedy=again)
    return lock


def _lock(row: Mapping[str, Any], source: str) -> Lock:
    try:
        found = tuple(Decision(**entry) for entry in row["decisions"])
        lock = Lock(
            source_sha256=row["source_sha256"],
            target=row["target"],
            toolchain=dict(row["toolchain"]),
            decisions=found,
            data=dict(row["data"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{source} is damaged: {error}") from error
    words = [lock.source_sha256, lock.target, *lock.toolchain.values(), *lock.data.values()]
    words += [word for d in found for word in (d.kind, d.name, d.status, d.reason_code)]
    if not all(isinstance(word, str) for word in words) or not all(
        isinstance(d.params, dict) and isinstance(d.found, dict) for d in found
    ):
        raise BundleError(f"{source} is damaged: a value has the wrong type")
    if any(d.status not in _STATUS for d in found):
        raise BundleError(f"{source} is damaged: a status is none of {', '.join(_STATUS)}")
    return lock


def diary_lines(results: Iterable[StepResult]) -> bytes:
    """The file ``diary.jsonl``: a JSON object a step. An infinite SQNR (no error) is null, minus infinity "-inf"."""
    return b"".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"
        for row in diary_rows(results)
    )


def diary_rows(results: Iterable[StepResult]) -> list[dict[str, Any]]:
    """The rows of a diary as plain values."""
    return [_row(result) for result in results]


def _row(result: StepResult) -> dict[str, Any]:
    step = {field.name: getattr(result.step, field.name) for field in dataclasses.fields(Step)}
    return {
        "step": {**step, "params": dict(result.step.params)},
        "status": result.status,
        "reason": result.reason,
        "before": dataclasses.asdict(result.before),
        "after": dataclasses.asdict(result.after),
        "drift": [{**dataclasses.asdict(drift), "sqnr_db": _finite(drift.sqnr_db)} for drift in result.drift],
        "latency_ratio": None if result.latency_ratio is None else list(result.latency_ratio),
        "seconds": result.seconds,
        **({"found": dict(result.found)} if result.found else {}),
        **({"points": [_point(point) for point in result.points]} if result.points else {}),
    }


def _point(point: Point) -> dict[str, Any]:
    return {**dataclasses.asdict(point), "sqnr_db": _finite(point.sqnr_db)}


def _finite(decibels: float) -> float | str | None:
    if math.isinf(decibels):
        return None if decibels > 0 else "-inf"
    return decibels


def read_diary(path: Path) -> tuple[StepResult, ...]:
    """Read a diary, or the one of the bundle in the folder ``path``. Raises BundleError naming the line."""
    file = path / "diary.jsonl" if path.is_dir() else path
    results = []
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line:
            continue
        where = f"{file.name}, line {number}"
        row = load_json(line, where)
        try:
            results.append(_result(row))
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{where} is damaged: {error}") from error
    return tuple(results)


def _result(row: Mapping[str, Any]) -> StepResult:
    if row["status"] not in _STATUS:
        raise ValueError(f"the status {row['status']!r} is unknown")
    ratio = row["latency_ratio"]
    if ratio is not None:
        middle, low, high = ratio
        ratio = (float(middle), float(low), float(high))
    return StepResult(
        step=Step(**row["step"]),
        status=row["status"],
        reason=row["reason"],
        before=_footprint(row["before"]),
        after=_footprint(row["after"]),
        drift=tuple(Drift(**{**d, "sqnr_db": _decibels(d["sqnr_db"])}) for d in row["drift"]),
        latency_ratio=ratio,
        seconds=float(row["seconds"]),
        found=dict(row.get("found", {})),
        points=tuple(
            Point(**{**p, "kept": tuple(p["kept"]), "sqnr_db": _decibels(p["sqnr_db"])}) for p in row.get("points", ())
        ),
    )


def _decibels(value: float | str | None) -> float:
    return math.inf if value is None else float(value)


def _footprint(row: Mapping[str, Any]) -> Footprint:
    return Footprint(**{**row, "assumed": tuple(row.get("assumed", ()))})
