"""Whether a processor has what a target promised: its architecture and its instruction-set features."""

from __future__ import annotations

from typing import Optional, Sequence

from runtime_bench.machine.environment import FLAGS

MACHINES = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64", "armv8l": "armv7l"}
"""Other spellings of an architecture -> the one of ``uname -m`` on Linux."""

FAST_INT8 = ("asimddp", "i8mm", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8", "svei8mm")
"""Features without which int8 kernels lose most of their gain."""


def architecture(machine: str) -> str:
    """The architecture that ``platform.machine()`` names, as Linux spells it."""
    return MACHINES.get(machine.lower(), machine.lower())


def missing_features(isa: Sequence[str], flags: Optional[Sequence[str]]) -> list[str]:
    """Features of a target that a processor lacks, in the order of the target.

    Args:
        isa: of the target, as Linux spells them.
        flags: of the processor, as ``environment.describe`` lists them; None where they are unreadable: then nothing
            is known to be missing. A feature that ``environment.FLAGS`` does not know is not judged.
    """
    if flags is None:
        return []
    return [feature for feature in isa if feature in FLAGS and feature not in flags]


def sentence(missing: Sequence[str], cpu: Optional[str]) -> str:
    """What a missing feature means, for a reader; empty when nothing is missing."""
    if not missing:
        return ""
    text = "this processor ({}) lacks {}, which the target has".format(cpu or "unnamed", ", ".join(missing))
    if any(feature in FAST_INT8 for feature in missing):
        text += ": int8 may be no faster than float here"
    return text + "; a runtime built for the target may end with SIGILL"
