"""The folder that goes to the device: written in one step, read with suspicion, verified by the program inside it."""

from __future__ import annotations

from edgeopt.bundle.destination import check_destination, sweep
from edgeopt.bundle.layout import MANIFEST, RECORDS, SCHEMA, SUMS, canonical, safe_name
from edgeopt.bundle.read import MEND, Bundle, VerificationError, read, verify
from edgeopt.bundle.records import (
    Decision,
    Lock,
    decisions,
    diary_lines,
    lock_text,
    read_diary,
    read_lock,
)
from edgeopt.bundle.write import Content, seal, write

__all__ = [
    "MANIFEST",
    "MEND",
    "RECORDS",
    "SCHEMA",
    "SUMS",
    "Bundle",
    "Content",
    "Decision",
    "Lock",
    "VerificationError",
    "canonical",
    "check_destination",
    "decisions",
    "diary_lines",
    "lock_text",
    "read",
    "read_diary",
    "read_lock",
    "safe_name",
    "seal",
    "sweep",
    "verify",
    "write",
]
