"""A device profile of this machine, as the TOML that ``edgeopt build --target FILE`` reads."""

from __future__ import annotations

import importlib.metadata
import json
import re
from typing import Any, List, Mapping, Optional, Tuple

from runtime_bench.machine import environment
from runtime_bench.machine.sensors import read_text

SUPPORT = ((1, 18, 21, 10), (1, 17, 20, 9), (1, 15, 19, 9))
"""onnxruntime (major, minor) -> highest opset and ONNX IR version it loads; newest first (tried)."""

OLDEST = "1.17.0"
"""What is written where onnxruntime is not installed."""

DISTRIBUTIONS = (("onnxruntime", "onnxruntime"), ("onnxruntime", "onnxruntime-gpu"), ("tensorrt", "tensorrt"))
"""Backend and the distribution whose version speaks for it."""

MACHINES = {"arm64": "aarch64", "armv8l": "armv7l", "amd64": "x86_64", "x64": "x86_64"}
EXACT = ("avx512_vnni", "avx_vnni")
DOT = (*EXACT, "asimddp", "i8mm")
PROBED = "probed on the device"


def loads(version: str) -> Tuple[int, int]:
    """Highest opset and IR version that an onnxruntime version loads."""
    known = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    for major, minor, opset, ir_version in SUPPORT:
        if known >= (major, minor):
            return opset, ir_version
    return 17, 8


def installed() -> Mapping[str, str]:
    """Version of every runtime installed beside this Python, by backend."""
    found = {}  # type: dict[str, str]
    for backend, distribution in DISTRIBUTIONS:
        try:
            found.setdefault(backend, importlib.metadata.version(distribution))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def profile(root: str = "/", runtimes: Optional[Mapping[str, str]] = None, name: Optional[str] = None) -> str:
    """Describe this machine as a profile; what could not be read is left out, what is assumed says so.

    Args:
        root: of the file system, so that a recorded one can stand in.
        runtimes: versions by backend; the installed ones when None.
        name: of the profile; made from the board's or the processor's when None.
    """
    machine = environment.describe(root)
    runtimes = installed() if runtimes is None else runtimes
    arch = MACHINES.get(str(machine["machine"]).lower(), str(machine["machine"]))
    known = machine["flags"] or []
    isa = [flag for flag in environment.FLAGS if flag in known]
    title = str(machine["board"] or machine["cpu"] or arch)
    threads = environment.usable_threads(1024, root)
    version = runtimes.get("onnxruntime", OLDEST)
    opset, ir_version = loads(version)
    text = _text
    lines = [
        'schema = "edgeopt.target/1"',
        "name = {}".format(text(name or slug(title))),
        "description = {}".format(text("{}: {}, {} threads".format(title, machine["cpu"] or arch, threads))),
        'backends = [{}"onnxruntime"]'.format('"tensorrt", ' if "tensorrt" in runtimes else ""),
        "arch = {}".format(text(arch)),
        "isa = [{}]".format(", ".join(map(text, isa))),
        "threads = {}".format(threads),
        "opset_max = {}".format(opset),
        "ir_version_max = {}".format(ir_version),
        *_notes(isa, machine["flags"] is None),
        "",
        "[int8]",
        *_int8(arch, isa),
        "",
        "[runtime]",
        'onnxruntime = "{}"{}'.format(
            version, "" if "onnxruntime" in runtimes else " # not installed here: state the oldest on your devices"
        ),
        *('{} = "{}"'.format(b, v) for b, v in runtimes.items() if b != "onnxruntime"),
        "",
        "[facts]",
        *_facts(machine, root),
    ]
    return "\n".join(lines) + "\n"


def slug(title: str) -> str:
    """A name for a profile: lower-case letters, digits and dashes, 64 at most, never ``host``."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-")
    return "board" if name in ("", "host") else name


def _notes(isa: List[str], unread: bool) -> List[str]:
    if unread:
        return ['notes = ["The features of the processor could not be read: complete isa."]']
    if not any(flag in isa for flag in DOT):
        return ['notes = ["No 8-bit dot product: int8 may not be faster than float here."]']
    return []


def _int8(arch: str, isa: List[str]) -> List[str]:
    """u8*s8 with 7-bit weights where x86 saturates pairs of products at 16 bits; s8*s8 on Arm."""
    if arch != "x86_64":
        return ['activation = "int8"']
    exact = any(flag in isa for flag in EXACT)
    return ['activation = "uint8"', *([] if exact else ["weight_bits = 7"])]


def _facts(machine: Mapping[str, Any], root: str) -> List[str]:
    frequencies = [value["max"] for value in (machine["frequency_khz"] or {}).values() if value.get("max")]
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_text(root, "etc/os-release") or "", re.MULTILINE)
    facts = {
        "cpu": machine["cpu"],
        "cores": machine["cpus_online"],
        "clock_hz": max(frequencies) * 1000 if frequencies else None,
        "memory_bytes": machine["memory_bytes"],
        "os": release.group(1) if release else None,
        "python": ".".join(str(machine["python"]).split(".")[:2]),
        "power_mode": machine["power_mode"],
    }
    return [
        "{} = {{ value = {}, source = {}, verified = true }}".format(key, _text(value), _text(PROBED))
        for key, value in facts.items()
        if value
    ]


def _text(value: Any) -> str:
    """A TOML value: JSON's spelling of texts and integers is TOML's too."""
    return json.dumps(value if isinstance(value, int) else str(value), ensure_ascii=True)
