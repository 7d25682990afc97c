"""The folder that goes to the device: written in one step, read with suspicion, verified by the program inside it."""

from __future__ import annotations

from edgeopt.bundle.destination import check_destination, sweep
from edgeopt.bundle.layout import MANIFEST, RECORDS, SCHEMA, SUMS, canonical, safe_name
from edgeopt.bundle.outcomes import OUTCOMES, JudgedOn, outcome_files, read_outcomes
from edgeopt.bundle.read import MEND, Bundle, VerificationError, read, verify
from edgeopt.bundle.records import (
    Decision,
    Lock,
    decisions,
    diary_lines,
    diary_rows,
    lock_text,
    read_diary,
    read_lock,
)
from edgeopt.bundle.write import Content, seal, write

__all__ = [
    "MANIFEST",
    "MEND",
    "OUTCOMES",
    "RECORDS",
    "SCHEMA",
    "SUMS",
    "Bundle",
    "Content",
    "Decision",
    "JudgedOn",
    "Lock",
    "VerificationError",
    "canonical",
    "check_destination",
    "decisions",
    "diary_lines",
    "diary_rows",
    "lock_text",
    "outcome_files",
    "read",
    "read_diary",
    "read_lock",
    "read_outcomes",
    "safe_name",
    "seal",
    "sweep",
    "verify",
    "write",
]
