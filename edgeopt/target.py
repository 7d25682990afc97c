"""Device profiles: TOML in, frozen values out. Budgets are re-exported beside them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from edgeopt import host
from edgeopt.budget import Budget as Budget
from edgeopt.budget import parse_budget as parse_budget
from edgeopt.errors import TargetError, did_you_mean
from edgeopt.tomlfile import Table, read_toml, refuse

SCHEMA = "edgeopt.target/1"
BACKENDS = ("onnxruntime", "tensorrt", "openvino", "litert")
"""Names a profile may list; which of them this version can build is the backends' business."""

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
    "onnxruntime_last_wheel": "last onnxruntime wheel for that Python and architecture",
}
"""Facts a profile may state, with what each means."""

_KEYS = (
    *("schema", "name", "aliases", "description", "backends", "arch", "isa", "threads", "opset_max"),
    *("ir_version_max", "int8", "runtime", "facts", "notes"),
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}")
_SUPPORT = ((1, 18, 21, 10), (1, 17, 20, 9), (1, 15, 19, 9))
"""onnxruntime (major, minor) -> highest opset and ONNX IR version it loads; newest first (tried)."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """One line of the list of targets; ``path`` is None for ``host``, which is probed."""

    name: str
    aliases: tuple[str, ...]
    description: str
    path: Path | None


def share_dir(kind: str) -> Path:
    """Folder of the shipped data of a kind (``targets``, ``calibration``): in the wheel, else in the checkout."""
    package = Path(str(resources.files("edgeopt")))
    packaged = package / "_share" / kind
    return packaged if packaged.is_dir() else package.parent / kind


def list_targets() -> tuple[TargetInfo, ...]:
    """Every shipped target, and ``host``, sorted by name.

    Raises:
        TargetError: a shipped profile is invalid.
    """
    found = [TargetInfo(name="host", aliases=(), description="this machine, probed when it is named", path=None)]
    for path in share_dir("targets").glob("*.toml"):
        target = _load(path)
        found.append(TargetInfo(name=target.name, aliases=target.aliases, description=target.description, path=path))
    return tuple(sorted(found, key=lambda info: info.name))


def load_target(name_or_path: str) -> Target:
    """The target of a name, an alias, or a path (anything with a slash or ending in ``.toml``).

    Raises:
        TargetError: unknown name, unreadable file, or a profile with problems; all of them are named.
    """
    if "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(".toml"):
        return _load(Path(name_or_path))
    if name_or_path == "host":
        return host_target(host.probe())
    infos = list_targets()
    for info in infos:
        if info.path is not None and name_or_path in (info.name, *info.aliases):
            return _load(info.path)
    names = tuple(name for info in infos for name in (info.name, *info.aliases))
    raise TargetError(
        f'unknown target "{name_or_path}".{did_you_mean(name_or_path.lower(), names)}',
        remedy=f"Known targets: {', '.join(sorted(names))}; or give the path of a .toml file.",
    )


def check_target(path: Path) -> list[str]:
    """Every problem of a profile, as sentences that name the key; empty when it can be used.

    Raises:
        TargetError: the file cannot be read or is not TOML.
    """
    table = read_toml(path)
    _parse(table)
    return table.problems


def target_dict(target: Target) -> dict[str, object]:
    """The target as plain JSON values, for the manifest."""
    raw = dataclasses.asdict(dataclasses.replace(target, runtime=dict(target.runtime), facts=dict(target.facts)))
    return {key: list(value) if isinstance(value, tuple) else value for key, value in raw.items()}


def host_target(machine: host.Host) -> Target:
    """The target of a probed machine; int8 as its instruction set wants it."""
    if machine.arch == "x86_64":
        exact = any(flag in machine.isa for flag in host.VNNI)
        scheme = Int8Scheme(activation="uint8", weight_bits=8 if exact else 7)
    else:
        scheme = Int8Scheme(activation="int8")
    installed = machine.runtimes.get("onnxruntime", "1.17.0")
    opset, ir_version = _loads(installed)
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


def _load(path: Path) -> Target:
    table = read_toml(path)
    target = _parse(table)
    refuse(path, table, "Correct the profile; docs/add-a-target.md lists every key.")
    return target


def _parse(table: Table) -> Target:
    """Read a profile; its problems are left in ``table.problems`` and the value is then not to be used."""
    table.only(_KEYS)
    table.text("schema", choices=(SCHEMA,))
    name = table.text("name")
    for word in (name, *table.texts("aliases")):
        if word and (word == "host" or not _NAME.fullmatch(word)):
            table.problem("name", f'"{word}" cannot name a target: lower-case letters, digits, ".", "-", not "host".')
    arch = table.text("arch", choices=host.ARCHES)
    target = Target(
        name=name,
        aliases=table.texts("aliases"),
        description=table.text("description"),
        backends=table.texts("backends", required=True, choices=BACKENDS),
        arch=arch,
        isa=table.texts("isa", choices=host.ISA.get(arch, ())),
        threads=table.integer("threads", least=1, most=1024),
        int8=_parse_int8(table.table("int8", required=True)),
        opset_max=table.integer("opset_max", least=13, most=21),
        ir_version_max=table.integer("ir_version_max", least=7, most=10),
        runtime=_parse_runtime(table.table("runtime")),
        facts={key: _parse_fact(fact) for key, fact in table.tables("facts").items()},
        notes=table.texts("notes"),
    )
    table.table("facts").only(tuple(FACTS))
    for problem in _contradictions(target):
        table.problems.append(problem)
    return target


def _parse_int8(table: Table) -> Int8Scheme:
    table.only(("activation", "weight_bits", "per_channel"))
    return Int8Scheme(
        activation=table.text("activation", choices=("int8", "uint8")),
        weight_bits=table.integer("weight_bits", 8, least=7, most=8),
        per_channel=table.flag("per_channel", True),
    )


def _parse_runtime(table: Table) -> dict[str, str]:
    table.only(BACKENDS)
    versions = {name: table.text(name) for name in BACKENDS if name in table.data}
    for name, version in versions.items():
        if version and not _VERSION.fullmatch(version):
            table.problem(name, f'"{version}" is not a version like "1.17.0".')
    return versions


def _parse_fact(table: Table) -> Fact:
    table.only(("value", "source", "verified"))
    value = table.data.get("value")
    good = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not good or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        table.problem("value", "must be a finite number or a text.")
        value = 0
    assert isinstance(value, str | int | float)
    return Fact(value=value, source=table.text("source"), verified=table.flag("verified"))


def _loads(version: str) -> tuple[int, int]:
    """Highest opset and IR version that an onnxruntime version loads."""
    parts = tuple(int(p) for p in re.findall(r"\d+", version)[:2])
    for major, minor, opset, ir_version in _SUPPORT:
        if parts >= (major, minor):
            return opset, ir_version
    return 17, 8


def _contradictions(target: Target) -> list[str]:
    problems = []
    for backend in target.runtime:
        if backend not in target.backends:
            problems.append(f"runtime.{backend}: the profile does not list this backend.")
    version = target.runtime.get("onnxruntime", "")
    if "onnxruntime" in target.backends and _VERSION.fullmatch(version):
        opset, ir_version = _loads(version)
        if target.opset_max > opset:
            problems.append(f"opset_max: onnxruntime {version} loads opset {opset} at most, got {target.opset_max}.")
        if target.ir_version_max > ir_version:
            found = target.ir_version_max
            problems.append(f"ir_version_max: onnxruntime {version} loads IR {ir_version} at most, got {found}.")
    elif "onnxruntime" in target.backends and not version:
        problems.append("runtime.onnxruntime: is missing; state the oldest version on the device.")
    exact = any(flag in target.isa for flag in host.VNNI)
    if target.arch == "x86_64" and target.int8.activation == "uint8" and target.int8.weight_bits == 8 and not exact:
        problems.append(
            "int8.weight_bits: must be 7 for uint8 activations on x86_64 without avx512_vnni or avx_vnni in isa: "
            "pairs of products saturate at 16 bits there and the results are wrong."
        )
    return problems
