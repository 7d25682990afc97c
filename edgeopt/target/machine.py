"""The target ``host``: this machine, probed."""

from __future__ import annotations

from typing import Any

from edgeopt import host
from edgeopt.target.types import Fact, Int8Scheme, Target, target_dict
from runtime_bench.profile import loads

NAME = "host"


def host_profile(machine: host.Host) -> dict[str, Any]:
    """What a profile takes from this machine with ``extends = "host"``: its tables as TOML would give them."""
    found = target_dict(host_target(machine))
    found["facts"] = {key: fact for key, fact in found["facts"].items() if fact["value"]}
    return {key: value for key, value in found.items() if key not in ("name", "aliases", "description")}


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
        name=NAME,
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
        optimized="native",
    )
