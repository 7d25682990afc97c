"""The target ``host``: this machine, probed."""

from __future__ import annotations

from edgeopt import host
from edgeopt.target.types import Fact, Int8Scheme, Target
from runtime_bench.profile import loads


def host_target(machine: host.Host) -> Target:
    """The target of a probed machine; int8 as its instruction set wants it."""
    if machine.arch == "x86_64":
        exact = any(flag in machine.isa for flag in host.VNNI)
        scheme = Int8Scheme(activation="uint8", weight_bits=8 if exact else 7)
    else:
        scheme = Int8Scheme(activation="int8")
    installed = machine.runtimes.get("onnxruntime", "1.17.0")
    opset, ir_version = loads(installed)
    notes = [f"threads from the {machine.threads_source}"]
    if not any(flag in machine.isa for flag in (*host.VNNI, "asimddp", "i8mm")):
        notes.append("no 8-bit dot product found: int8 may not be faster than float here")
    return Target(
        name="host",
        description=f"this machine: {machine.cpu}, {machine.arch}, {machine.threads} threads",
        backends=("onnxruntime",),
        arch=machine.arch,
        isa=machine.isa,
        threads=machine.threads,
        int8=scheme,
        opset_max=opset,
        ir_version_max=ir_version,
        runtime={"onnxruntime": installed},
        facts={"memory_bytes": Fact(value=machine.memory_bytes, source=machine.memory_source, verified=True)},
        notes=tuple(notes),
    )
