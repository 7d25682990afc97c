"""The file ``outcomes.json``: how each artifact did on every sample of the evaluation set.

Version 1 holds right and wrong by label (``top1``) or by the float model (``agreement``). Version 2 is written for what
that cannot say: other metrics, values that are not right or wrong, samples that belong together.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.bundle.layout import load_json, read_text
from edgeopt.errors import BundleError
from edgeopt.outcomes import KINDS, Outcomes

Json = dict[str, Any]

OUTCOMES = "outcomes.json"
OUTCOMES_SCHEMA = "edgeopt.outcomes/1"
OUTCOMES_SCHEMA_2 = "edgeopt.outcomes/2"
_MAX_SAMPLES = 50_000_000
_MAX_NAME = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedOn:
    """What the artifacts of a bundle were judged on, and how each did.

    Attributes:
        set_name: name of the evaluation set.
        set_sha256: digest of its description and files.
        source_sha256: digest of the model that was given to the build, whose answers ``agreement`` counts.
        outcomes: by precision of the artifact; all over the same samples.
    """

    set_name: str
    set_sha256: str
    source_sha256: str
    outcomes: Mapping[str, Outcomes]


def outcome_files(judged: JudgedOn) -> dict[str, bytes]:
    """The record files: one, or none where no artifact has outcomes."""
    if not judged.outcomes:
        return {}
    first = next(iter(judged.outcomes.values()))
    row = {
        "schema": OUTCOMES_SCHEMA,
        "set": {"name": judged.set_name, "sha256": judged.set_sha256},
        "source_sha256": judged.source_sha256,
        "kind": first.kind,
        "samples_sha256": first.samples_sha256,
        "count": first.count,
        **_answers(judged.outcomes),
    }
    if _needs_2(first):
        row |= {
            "schema": OUTCOMES_SCHEMA_2,
            "metric": {"better": first.better, "unit": first.unit, "judged_by": first.judged_by},
            "groups": _text(first.groups) if first.groups else None,
            "weights": _text(first.weights) if first.values else None,
        }
    return {OUTCOMES: (json.dumps(row, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()}


def _needs_2(found: Outcomes) -> bool:
    return bool(found.kind not in KINDS or found.groups or found.judged_by)


def _answers(outcomes: Mapping[str, Outcomes]) -> Json:
    """``right`` in bits as hexadecimal digits, or ``values`` as base64 of float32."""
    if next(iter(outcomes.values())).values:
        return {"values": {precision: _text(found.values) for precision, found in outcomes.items()}}
    return {"right": {precision: found.right.hex() for precision, found in outcomes.items()}}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def read_outcomes(root: Path) -> JudgedOn | None:
    """Read the outcomes of the bundle in the folder ``root``; None where it has none.

    Raises:
        BundleError: the file is damaged or was written by a newer edgeopt.
    """
    path = root / OUTCOMES
    if not path.exists() and not path.is_symlink():
        return None
    row = load_json(read_text(path), OUTCOMES)
    if not isinstance(row, dict) or row.get("schema") not in (OUTCOMES_SCHEMA, OUTCOMES_SCHEMA_2):
        found = row.get("schema") if isinstance(row, dict) else None
        newer = str(found).startswith(OUTCOMES_SCHEMA.partition("/")[0] + "/")
        raise BundleError(f"{OUTCOMES} has the schema {found!r:.60}", remedy="Update edgeopt." if newer else None)
    try:
        return _judged(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{OUTCOMES} is damaged: {error}") from error


def _judged(row: Mapping[str, Any]) -> JudgedOn:
    kind, count = row["kind"], row["count"]
    texts = [row["set"]["name"], row["set"]["sha256"], row["source_sha256"], row["samples_sha256"]]
    second = row["schema"] == OUTCOMES_SCHEMA_2
    known = isinstance(kind, str) and 0 < len(kind) <= _MAX_NAME if second else kind in KINDS
    if not all(isinstance(text, str) for text in texts) or not known:
        raise ValueError("a name, digest or kind is not as it should be")
    if type(count) is not int or not 1 <= count <= _MAX_SAMPLES:
        raise ValueError("the count of samples is out of range")
    shared = _shared(row, count) if second else {}
    valued = second and row.get("weights") is not None
    outcomes = {}
    for precision, text in row["values" if valued else "right"].items():
        right = b"" if valued else bytes.fromhex(text)
        if not valued and len(right) != -(-count // 8):
            raise ValueError(f"the outcomes of {precision!r:.40} are not one bit for each of {count} samples")
        values = _numbers(text, count, "<f4", f"the values of {precision!r:.40}") if valued else b""
        outcomes[precision] = Outcomes(
            kind=kind, samples_sha256=texts[3], count=count, right=right, values=values, **shared
        )
    return JudgedOn(set_name=texts[0], set_sha256=texts[1], source_sha256=texts[2], outcomes=outcomes)


def _shared(row: Mapping[str, Any], count: int) -> Json:
    """What all artifacts of the second version have in common."""
    metric = row["metric"]
    if metric["better"] not in ("higher", "lower") or metric["unit"] not in ("share", "index", "number"):
        raise ValueError("the direction or unit of the metric is not as it should be")
    if not isinstance(metric["judged_by"], str | None):
        raise ValueError("the name of a metric is not as it should be")
    found: Json = {key: metric[key] for key in ("better", "unit", "judged_by")}
    if row.get("groups") is not None:
        found["groups"] = _numbers(row["groups"], count, "<i4", "the groups")
    if row.get("weights") is not None:
        found["weights"] = _numbers(row["weights"], count, "<f4", "the weights")
        if not np.frombuffer(found["weights"], "<f4").min() > 0:
            raise ValueError("a weight is not greater than zero")
    return found


def _numbers(text: str, count: int, dtype: str, what: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    if len(data) != count * np.dtype(dtype).itemsize:
        raise ValueError(f"{what} are not one for each of {count} samples")
    if not np.isfinite(np.frombuffer(data, dtype)).all():
        raise ValueError(f"{what} are not finite")
    return data
