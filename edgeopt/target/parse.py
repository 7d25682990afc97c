"""A TOML table to a Target: every key known, every contradiction named."""

from __future__ import annotations

import math
import re

from edgeopt import host
from edgeopt.budget import Budget, parse_budget
from edgeopt.target.types import BACKENDS, FACTS, FORMATS, OPTIMIZED, SCHEMA, Fact, Int8Scheme, Target
from edgeopt.tomlfile import Table
from runtime_bench.profile import loads

_KEYS = (
    *("schema", "name", "aliases", "description", "backends", "arch", "isa", "threads", "opset_max"),
    *("ir_version_max", "int8", "runtime", "facts", "notes", "format", "optimized", "budget"),
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}")


def parse(table: Table) -> Target:
    """Read a profile; its problems are left in ``table.problems`` and the value is then not to be used."""
    table.only(_KEYS)
    table.text("schema", choices=(SCHEMA,))
    name = table.text("name")
    for word in (name, *table.texts("aliases")):
        if word and (word in ("host", "all") or not _NAME.fullmatch(word)):
            table.problem(
                "name", f'"{word}" cannot name a target: lower-case letters, digits, ".", "-", not "host" or "all".'
            )
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
        format=table.text("format", "onnx", choices=FORMATS),
        optimized=table.text("optimized", "portable", choices=OPTIMIZED),
        budget=_parse_budget(table.table("budget")),
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


def _parse_budget(table: Table) -> Budget:
    """Limits as the option --budget takes them, one a key."""
    try:
        return parse_budget(",".join(f"{key}={table.text(key)}" for key in table.data))
    except ValueError as error:  # it names the key
        table.problems.append(str(error))
        return Budget()


def _parse_fact(table: Table) -> Fact:
    table.only(("value", "source", "verified"))
    value = table.data.get("value")
    good = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not good or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        table.problem("value", "must be a finite number or a text.")
        value = 0
    assert isinstance(value, str | int | float)
    return Fact(value=value, source=table.text("source"), verified=table.flag("verified"))


def parts(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing: ``"1.17.0"`` is (1, 17, 0)."""
    return tuple(int(p) for p in re.findall(r"\d+", version))


def _contradictions(target: Target) -> list[str]:
    problems = []
    for backend in target.runtime:
        if backend not in target.backends:
            problems.append(f"runtime.{backend}: the profile does not list this backend.")
    version = target.runtime.get("onnxruntime", "")
    if "onnxruntime" in target.backends and _VERSION.fullmatch(version):
        opset, ir_version = loads(version)
        if target.opset_max > opset:
            problems.append(f"opset_max: onnxruntime {version} loads opset {opset} at most, got {target.opset_max}.")
        if target.ir_version_max > ir_version:
            found = target.ir_version_max
            problems.append(f"ir_version_max: onnxruntime {version} loads IR {ir_version} at most, got {found}.")
    elif "onnxruntime" in target.backends and not version:
        problems.append("runtime.onnxruntime: is missing; state the oldest version on the device.")
    if target.optimized == "native" and target.format == "ort":
        problems.append('optimized: "native" needs format = "onnx": a .ort file holds no layout of one processor.')
    if target.optimized == "native" and "onnxruntime" not in target.backends:
        problems.append('optimized: "native" is a form of onnxruntime\'s files, which backends does not list.')
    exact = any(flag in target.isa for flag in host.VNNI)
    if target.arch == "x86_64" and target.int8.activation == "uint8" and target.int8.weight_bits == 8 and not exact:
        problems.append(
            "int8.weight_bits: must be 7 for uint8 activations on x86_64 without avx512_vnni or avx_vnni in isa: "
            "pairs of products saturate at 16 bits there and the results are wrong."
        )
    return problems
