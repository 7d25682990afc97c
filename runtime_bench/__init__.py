"""Measures and verifies compiled models, on the build host and on a device.

Standard library only (numpy and the runtime are imported inside worker processes), Python 3.8 syntax, no import of
the compiler. The public names below are loaded on first use, so that a worker process stays as small as what it
measures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime_bench.archive import write_pyz
    from runtime_bench.errors import BenchFailure, RuntimeMissing, VerifyFailure
    from runtime_bench.golden import pooled_sqnr_db, sqnr_by_output_db
    from runtime_bench.judge.comparison import compare
    from runtime_bench.judge.stability import grade
    from runtime_bench.judge.summary import charged_bytes, summarize
    from runtime_bench.machine.environment import usable_threads
    from runtime_bench.manifest import identity
    from runtime_bench.protocol import EFFORTS, Subject, measure
    from runtime_bench.verify import verify_bundle

_HOME = {
    "write_pyz": "archive",
    "usable_threads": "machine.environment",
    "BenchFailure": "errors",
    "RuntimeMissing": "errors",
    "VerifyFailure": "errors",
    "pooled_sqnr_db": "golden",
    "sqnr_by_output_db": "golden",
    "identity": "manifest",
    "EFFORTS": "protocol",
    "Subject": "protocol",
    "measure": "protocol",
    "charged_bytes": "judge.summary",
    "compare": "judge.comparison",
    "grade": "judge.stability",
    "summarize": "judge.summary",
    "verify_bundle": "verify",
}

__all__ = [
    "EFFORTS",
    "BenchFailure",
    "RuntimeMissing",
    "Subject",
    "VerifyFailure",
    "charged_bytes",
    "compare",
    "grade",
    "identity",
    "measure",
    "pooled_sqnr_db",
    "sqnr_by_output_db",
    "summarize",
    "usable_threads",
    "verify_bundle",
    "write_pyz",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that owns it."""
    if name not in _HOME:
        raise AttributeError("module 'runtime_bench' has no attribute {!r}".format(name))
    value = getattr(import_module("." + _HOME[name], __name__), name)
    globals()[name] = value
    return value
