"""Reads a recorded measurement from a file of unknown origin: bounded in size, checked in shape before it is used."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.bundle.layout import load_json
from edgeopt.comparing.shape import (
    Check,
    Misshapen,
    either,
    flag,
    mapping,
    maybe,
    number,
    pair,
    rows,
    table,
    text,
    whole,
    word,
)
from edgeopt.errors import BenchError, BundleError

SCHEMA = "edgeopt.measurement/2"
MAX_BYTES = 64 << 20

_MEASURE = "Measure again with `edgeopt bench MODEL -o FILE.json`."
_NS = rows(whole())


def _rate(value: Any, where: str) -> None:
    number(value, where)
    if value <= 0:
        raise Misshapen(f"{where} is not above 0")


_PHASE = {"start_ns": whole(-(2**62)), "steady_begin_ns": whole(), "steady_span_ns": whole(), "every": whole(1)}
_SEEN = {
    **_PHASE,
    "events": mapping(rows(pair(whole()))),
    "unread": mapping(text),
    "fault_ns": maybe(number),
}
_TOLD = {
    **_SEEN,
    "round": whole(),
    "warmup_ns": _NS,
    "warmup_calls": whole(),
    "warmup_stable": flag,
    "service_ns": _NS,
    "burst_ns": rows(_NS),
    "cut_short": flag,
}
_GOOD = table(
    {
        "error": maybe(text),
        "steady_ns": rows(whole(), 1),
        "every": whole(1),
        "phases_ns": table({phase: whole() for phase in ("import", "load", "first")}),
        "warmup_stable": flag,
        "cut_short": flag,
    },
    _TOLD,
)
_FAILED = table({"error": text, "steady_ns": _NS}, {**_TOLD, "phases_ns": mapping(whole())})
_PROCESS = either(lambda value: isinstance(value, dict) and not value.get("error"), _GOOD, _FAILED)
_SUSTAINED = table({"steady_ns": _NS, "error": maybe(text)}, {**_SEEN, "cut_short": flag})
_MISSING = table({"bytes": word(None)}, {"reason": maybe(text)})
_FIGURE = either(
    lambda value: isinstance(value, dict) and value.get("bytes") is None,
    _MISSING,
    table({"bytes": whole()}, {"raw_bytes": rows(whole(-(2**62))), "source": maybe(text), "method": maybe(text)}),
)
_BOUNDS = {"calls": whole(), "points": rows(pair(whole(-(2**62)))), "verdict": word("none", "leak", "unknown")}
_GROWTH = either(
    lambda value: isinstance(value, dict) and value.get("verdict") == "leak",
    table({"bytes_per_call": number, "low": number, "high": number}, _BOUNDS),
    table({"bytes_per_call": maybe(number)}, {**_BOUNDS, "low": maybe(number), "high": maybe(number)}),
)
_MEMORY = table(
    {"interpreter": _FIGURE, "runtime": _FIGURE, "model": _FIGURE},
    {"load": _FIGURE, "steady": _FIGURE, "growth": _GROWTH},
)


def _audit(macs: Check) -> Check:
    """What ran; ``macs`` takes a count of multiply-accumulates."""
    away = table({"op": text, "provider": text, "count": whole(), "macs": macs})
    return table(
        {
            "asked": text,
            "nodes": whole(),
            "providers": mapping(whole()),
            "outside": rows(away),
            "opaque_nodes": whole(),
            "macs": maybe(mapping(whole())),
            "integer_nodes": whole(),
            "float_nodes": whole(),
            "integer_macs": macs,
            "float_macs": macs,
        }
    )


_COUNTED = either(
    lambda value: isinstance(value, dict) and value.get("macs") is not None, _audit(whole()), _audit(maybe(whole()))
)
_NO_AUDIT = table({}, {"reason": maybe(text)})
_SUBJECT = table(
    {
        "name": text,
        "runtime": table({"name": text, "version": text, "provider": text}),
        "processes": rows(_PROCESS),
        "memory": _MEMORY,
    },
    {
        "file": text,
        "sha256": text,
        "bytes": maybe(whole()),
        "precision": maybe(text),
        "sustained": maybe(_SUSTAINED),
        "audit": either(lambda value: isinstance(value, dict) and "providers" in value, _COUNTED, _NO_AUDIT),
    },
)
_SAMPLES = table(
    {},
    {
        "period_ms": number,
        "t_ns": rows(whole(-(2**62))),
        **{key: mapping(rows(maybe(number))) for key in ("frequency_khz", "temperature_mc", "energy_uj", "power_uw")},
    },
)
_ENVIRONMENT = table(
    {"machine": text, "kernel": text, "cpus": whole(1), "cpus_online": maybe(whole(1))},
    {
        **{
            key: maybe(text)
            for key in ("board", "cpu", "governor", "python", "container", "power_source", "power_mode")
        },
        **{
            key: maybe(number)
            for key in (
                *("quota_cpus", "load1", "load1_after", "memory_bytes", "throttled_periods", "thermal_throttles"),
                *("pressure_cpu_some_us", "steal_share", "idle_power_uw"),
            )
        },
        "flags": maybe(rows(text)),
        "cpus_allowed": maybe(rows(whole())),
        "frequency_khz": maybe(mapping(maybe(mapping(maybe(number))))),
        "temperature_mc": maybe(mapping(maybe(number))),
        "samples": maybe(_SAMPLES),
        "missing": mapping(text),
    },
)
_MEASUREMENT = table(
    {
        "effort": text,
        "threads": whole(1, 1 << 20),
        "subjects": rows(_SUBJECT, 1),
        "environment": _ENVIRONMENT,
    },
    {
        "threads_requested": whole(1, 1 << 20),
        "affinity": maybe(rows(whole())),
        "seconds": maybe(number),
        "order": rows(text),
        "cut": rows(text),
        "isa": rows(text),
        "seed": whole(),
        "clock": maybe(table({}, {"overhead_ns": number, "resolution_ns": number})),
        "load": either(
            lambda value: isinstance(value, dict) and value.get("kind") == "periodic",
            table({"fps": _rate, "period_ns": whole(1)}),
            table({"kind": word("back_to_back", "periodic")}),
        ),
    },
)


def read_measurement(path: Path) -> Mapping[str, Any]:
    """Read and check a measurement file.

    Raises:
        BenchError: not readable, too large, not JSON, not a measurement of this version, or damaged.
    """
    try:
        document = load_json(_read(path), str(path))
    except BundleError as error:
        raise BenchError(error.message, remedy=_MEASURE) from error
    return check_measurement(document, str(path))


def check_measurement(document: Any, where: str) -> Mapping[str, Any]:
    """Return the document if it is a measurement that every reader here can work with.

    Raises:
        BenchError: another schema, or a value that is missing or has the wrong type; it is named.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    family, _, version = str(schema).partition("/")
    if schema != SCHEMA and family == SCHEMA.partition("/")[0] and version.isdecimal():
        if int(version) < int(SCHEMA.partition("/")[2]):
            raise BenchError(f"{where} was measured by an older version of edgeopt ({schema})", remedy=_MEASURE)
        raise BenchError(f"{where} was measured by a newer version of edgeopt ({schema})", remedy="Update edgeopt.")
    if schema != SCHEMA:
        what = "it has no schema" if schema is None else f"its schema is {str(schema)!r:.60}"
        raise BenchError(f"{where} is no measurement: {what}", remedy="Give a file that `edgeopt bench -o` wrote.")
    try:
        _MEASUREMENT(document, "")
    except Misshapen as error:
        raise BenchError(f"{where} is damaged: {error}", remedy=_MEASURE) from error
    names = [subject["name"] for subject in document["subjects"]]
    if len(set(names)) != len(names):
        raise BenchError(f"{where} is damaged: two subjects have one name", remedy=_MEASURE)
    found: Mapping[str, Any] = document
    return found


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BenchError(f"{path} is no plain file")
            if status.st_size > MAX_BYTES:
                raise BenchError(f"{path} is larger than {MAX_BYTES >> 20} MiB: no measurement is", remedy=_MEASURE)
            return stream.read(MAX_BYTES + 1).decode()
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"{path} is not UTF-8", remedy=_MEASURE) from error
