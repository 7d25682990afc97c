"""``edgeopt doctor``: what this machine can build and measure, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click

from edgeopt.cli._options import emit_json, json_option
from edgeopt.console import bytes_text, result_table

State = Literal["ok", "note", "missing"]

_BASE = ("onnxruntime", "onnx", "onnx-ir", "numpy")
_TORCH = ("torch", "onnxscript")
_DISK = 500 * 10**6
_MEMORY = 500 * 10**6
_DOT_PRODUCT = ("avx512_vnni", "avx_vnni", "asimddp", "i8mm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at. ``missing`` makes builds impossible; ``note`` costs something, which ``remedy`` says."""

    name: str
    state: State
    value: str
    remedy: str = ""


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Say what this machine can build and measure, and what is missing.

    Exit 6 when something makes builds impossible. Nothing is installed or changed.
    """
    from edgeopt.errors import ToolchainError

    found = findings()
    missing = [f for f in found if f.state == "missing"]
    if as_json:
        emit_json({"ok": not missing, "findings": [dataclasses.asdict(f) for f in found]})
    else:
        marks = {"ok": "ok", "note": "note", "missing": "MISSING"}
        rows = [(f.name, marks[f.state], f.value + (f" - {f.remedy}" if f.remedy else "")) for f in found]
        result_table(("what", "", "found"), rows, stream=sys.stdout)
    if missing:
        raise ToolchainError(
            f"builds are not possible here: {', '.join(f.name for f in missing)}", remedy=missing[0].remedy
        )


def findings(root: Path = Path("/")) -> list[Finding]:
    """Everything looked at, in the order in which it is shown. ``root`` is where /proc and /sys are."""
    return [*_software(), *_machine(root), *_measuring(root), *_disk()]


def _software() -> Iterator[Finding]:
    from edgeopt import __version__

    yield Finding(name="edgeopt", state="ok", value=__version__)
    yield Finding(name="python", state="ok", value=f"{platform.python_version()} ({sys.executable})")
    for name in _BASE:
        version = _version(name)
        if version is None and name == "onnxruntime" and (gpu := _version("onnxruntime-gpu")) is not None:
            yield Finding(name=name, state="ok", value=f"{gpu} (onnxruntime-gpu)")
        elif version is None:
            yield Finding(name=name, state="missing", value="not installed", remedy=f"Run: pip install {name}")
        else:
            yield Finding(name=name, state="ok", value=version)
    yield _openvino()
    for name in _TORCH:
        version = _version(name)
        yield Finding(
            name=name,
            state="ok" if version else "note",
            value=version or "not installed; .pt2 models cannot be read",
            remedy="" if version else 'Run: pip install "edgeopt[torch]"',
        )


def _openvino() -> Finding:
    """Whether targets that list OpenVINO first are built for it."""
    from edgeopt.backends.registry import BACKENDS, INSTALL

    version, fault = _version("openvino"), BACKENDS["openvino"].probe()
    missing = "not installed; targets that list it are built for what else they list"
    return Finding(
        name="openvino",
        state="ok" if fault is None else "note",
        value=version or missing if fault is None else missing if version is None else fault,
        remedy="" if fault is None else f"Run: {INSTALL['openvino']}",
    )


def _machine(root: Path) -> Iterator[Finding]:
    from edgeopt import host

    machine = host.probe(root)
    yield Finding(name="processor", state="ok", value=f"{machine.cpu} ({machine.arch})")
    fast = [flag for flag in machine.isa if flag in _DOT_PRODUCT]
    yield Finding(
        name="int8 features",
        state="ok" if fast else "note",
        value=", ".join(machine.isa) or "none found",
        remedy="" if fast else "No 8-bit dot product: int8 is smaller here, but may not be faster than float.",
    )
    online = os.cpu_count() or 1
    yield Finding(
        name="threads",
        state="ok",
        value=f"{machine.threads} of {online} processors, by {machine.threads_source}",
    )
    import psutil

    available = int(psutil.virtual_memory().available)
    tight = min(available, machine.memory_bytes) < _MEMORY
    yield Finding(
        name="memory",
        state="note" if tight else "ok",
        value=f"{bytes_text(machine.memory_bytes)} by {machine.memory_source}, {bytes_text(available)} available",
        remedy=f"Less than {bytes_text(_MEMORY)}: larger models may not build." if tight else "",
    )


def _measuring(root: Path) -> Iterator[Finding]:
    governors = sorted(
        {
            path.read_text(encoding="ascii", errors="replace").strip()
            for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
        }
    )
    steady = not governors or governors == ["performance"]
    yield Finding(
        name="cpu governor",
        state="ok" if steady else "note",
        value=", ".join(governors) or "not controlled by this system",
        remedy="" if steady else "Latencies will vary; set it to performance while you measure.",
    )
    resettable = os.access(root / "proc/self/clear_refs", os.W_OK)
    yield Finding(
        name="peak memory",
        state="ok" if resettable else "note",
        value="can be measured" if resettable else "cannot be reset before a measurement",
        remedy="" if resettable else "Peaks include the process's start; Linux with /proc/self/clear_refs resets them.",
    )


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    low = free < _DISK
    yield Finding(
        name="disk here",
        state="note" if low else "ok",
        value=f"{bytes_text(free)} free in {Path.cwd()}",
        remedy="Bundles and their temporary files may not fit." if low else "",
    )
    writable = os.access(Path.cwd(), os.W_OK)
    if not writable:
        yield Finding(name="folder here", state="note", value="not writable", remedy="Give -o a folder that is.")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
