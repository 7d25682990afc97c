"""What a device profile holds: frozen values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.budget import Budget

SCHEMA = "edgeopt.target/1"
BACKENDS = ("onnxruntime", "tensorrt", "openvino", "litert")
"""Names a profile may list; which of them this version can build is the backends' business."""

FORMATS = ("onnx", "ort")
"""Kinds of file that onnxruntime loads; minimal builds for phones load ``.ort`` only."""

FACTS: Mapping[str, str] = {
    "memory_bytes": "bytes of memory on the board",
    "bandwidth_bytes_per_s": "peak memory bandwidth, bytes per second",
    "clock_hz": "highest CPU clock, hertz",
    "cores": "CPU cores",
    "l2_bytes": "L2 cache of one core, bytes",
    "l3_bytes": "last-level cache of the CPU, bytes",
    "int8_tops_dense": "int8 operations per second of the accelerator, dense, in 10^12",
    "int8_tops_sparse": "the same with 2:4 sparse weights",
    "tdp_watts": "highest power mode, watts",
    "cpu": "CPU core",
    "gpu": "GPU and its compute capability",
    "os": "system image",
    "python": "Python of that image",
    "tensorrt": "TensorRT of that image",
    "power_mode": "power mode that the other numbers hold for",
}
"""Facts a profile may state, with what each means."""


OPTIMIZED = ("portable", "native")
"""Whose work a file for onnxruntime holds: edgeopt's rewrites, which every machine optimizes further when it loads the
file, or all that the runtime does on the machine of the profile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """A hard number of a device with where it comes from. Unverified facts are hints, never gates."""

    value: float | int | str
    source: str
    verified: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Int8Scheme:
    """How the runtime on this device wants int8.

    Attributes:
        activation: ``"int8"`` or ``"uint8"``, asymmetric per tensor.
        weight_bits: 8, or 7 where u8*s8 pairs may saturate int16 (AVX2 without VNNI).
        per_channel: weights have one scale per output channel.
    """

    activation: str
    weight_bits: int = 8
    per_channel: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A device as the compiler sees it.

    Attributes:
        backends: names in order of preference.
        isa: instruction-set features that matter, as Linux spells them (``asimddp``, ``avx512_vnni``).
        runtime: minimum runtime version by backend name, as found on the device.
        facts: hard numbers (``memory_bytes``, see ``FACTS``), each with source and verified.
        aliases: other names of the same profile.
        format: ``"onnx"`` or ``"ort"``, what onnxruntime is given.
        optimized: ``"native"`` where onnxruntime's own optimized graph is to be shipped, else ``"portable"``.
        budget: limits that hold for every build for this device, unless the build states others.
    """

    name: str
    description: str
    backends: tuple[str, ...]
    arch: str
    isa: tuple[str, ...]
    threads: int
    int8: Int8Scheme
    opset_max: int
    ir_version_max: int
    runtime: Mapping[str, str]
    facts: Mapping[str, Fact]
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    format: str = "onnx"
    optimized: str = "portable"
    budget: Budget = dataclasses.field(default_factory=Budget)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """One line of the list of targets; ``path`` is None for ``host``, which is probed."""

    name: str
    aliases: tuple[str, ...]
    description: str
    path: Path | None


def target_dict(target: Target) -> dict[str, Any]:
    """The target as plain JSON values, for the manifest."""
    raw = dataclasses.asdict(dataclasses.replace(target, runtime=dict(target.runtime), facts=dict(target.facts)))
    if target.budget == Budget():
        del raw["budget"]
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}
