"""The file ``outcomes.json``: which samples of the evaluation set each artifact answered right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.bundle.layout import load_json, read_text
from edgeopt.errors import BundleError
from edgeopt.outcomes import KINDS, Outcomes

OUTCOMES = "outcomes.json"
OUTCOMES_SCHEMA = "edgeopt.outcomes/1"
_MAX_SAMPLES = 50_000_000


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
        "right": {precision: found.right.hex() for precision, found in judged.outcomes.items()},
    }
    return {OUTCOMES: (json.dumps(row, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()}


def read_outcomes(root: Path) -> JudgedOn | None:
    """Read the outcomes of the bundle in the folder ``root``; None where it has none.

    Raises:
        BundleError: the file is damaged or was written by a newer edgeopt.
    """
    path = root / OUTCOMES
    if not path.exists() and not path.is_symlink():
        return None
    row = load_json(read_text(path), OUTCOMES)
    if not isinstance(row, dict) or row.get("schema") != OUTCOMES_SCHEMA:
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
    if not all(isinstance(text, str) for text in texts) or kind not in KINDS:
        raise ValueError("a name, digest or kind is not as it should be")
    if type(count) is not int or not 1 <= count <= _MAX_SAMPLES:
        raise ValueError("the count of samples is out of range")
    outcomes = {}
    for precision, text in row["right"].items():
        right = bytes.fromhex(text)
        if len(right) != -(-count // 8):
            raise ValueError(f"the outcomes of {precision!r:.40} are not one bit for each of {count} samples")
        outcomes[precision] = Outcomes(kind=kind, samples_sha256=texts[3], count=count, right=right)
    return JudgedOn(set_name=texts[0], set_sha256=texts[1], source_sha256=texts[2], outcomes=outcomes)
