"""The section about the environment: what ran where, what was read before and after, what could not be read and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import plots, text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.look import Json, both, color, sentence
from edgeopt.report.plots.course import Point
from runtime_bench.audit import outside_share

HIDDEN = ("missing", "samples")
AFTER = {"load1_after": "load1"}
"""Keys that hold the later value of another one."""


def environment(found: Json, measurements: Mapping[str, Json], measured_on: Mapping[str, Any]) -> Json:
    """What the measuring machine was, what the runtime really ran, and what changed during the measurement."""
    where = str(measured_on.get("machine") or "an unknown machine")
    if found["measurement"] is None:
        return {
            "lead": f"Built on {where}. Nothing was measured, so there is no environment to describe.",
            "ran": Grid(),
        }
    measurement = measurements[found["measurement"]]
    described: Json = measurement.get("environment") or {}
    return {
        "lead": f"Measured on {where}, with {_runtimes(measurement)}.",
        "ran": ran(measurement["subjects"]),
        "facts": _facts(described, measurement),
        "unknown": [(key.replace("_", " "), reason) for key, reason in sorted(_missing(described).items())],
    }


def _runtimes(measurement: Json) -> str:
    wait = {True: ", idle threads spin", False: "", None: ""}
    names = {
        f"{r['name']} {r['version']} ({r['provider']}{wait[r.get('spinning')]})"
        for s in measurement["subjects"]
        if (r := s.get("runtime"))
    }
    return ", ".join(sorted(names)) or "an unknown runtime"


def ran(subjects: Sequence[Json]) -> Grid:
    """What was asked of the runtime and what it ran, read back from the runtime itself."""
    rows: list[Sequence[str | Cell]] = []
    told = []
    for subject in subjects:
        audit, runtime = subject.get("audit") or {"reason": "not read back"}, subject.get("runtime") or {}
        asked, got = runtime.get("asked") or "–", runtime.get("provider") or "–"
        if "nodes" not in audit:
            rows.append((subject["name"], _short(asked), _short(got), *["n/a"] * 4))
            told.append(f"Not read back: {audit.get('reason') or 'no reason given'}.")
            continue
        outside, macs = sum(o["count"] for o in audit["outside"]), outside_share(audit)[1]
        rows.append(
            (
                subject["name"],
                _short(asked),
                ", ".join(f"{_short(name)}: {n} of {audit['nodes']}" for name, n in audit["providers"].items()),
                Cell(text=str(outside), css="over" if outside else ""),
                "n/a" if macs is None else text.percent(macs),
                *(Cell(text=str(audit[key]), small=_macs(audit.get(work))) for key, work in _KINDS),
            )
        )
        told.append(_outside(audit))
    heads = ("Subject", "Provider asked for", "Nodes that ran", ">Nodes outside", ">MACs outside")
    return grid((*heads, ">Integer nodes", ">Float nodes"), rows, notes=told if any(told) else [])


_KINDS = (("integer_nodes", "integer_macs"), ("float_nodes", "float_macs"))


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def _macs(count: float | None) -> str:
    return "" if count is None else f"{text.count(count)} MAC"


def _outside(audit: Json) -> str:
    parts = []
    if audit["outside"]:
        parts.append("Outside: " + ", ".join(f"{o['count']} {o['op']}" for o in audit["outside"]))
    if audit.get("shape_nodes_outside"):
        parts.append(f"{text.plural(audit['shape_nodes_outside'], 'node')} of shape arithmetic on the CPU on purpose")
    if audit.get("opaque_nodes"):
        parts.append(f"{text.plural(audit['opaque_nodes'], 'compiled subgraph')} whose nodes are not told")
    if not audit.get("macs"):
        parts.append(f"No count of MACs: {audit.get('macs_reason') or 'no reason given'}")
    return sentence(parts)


def _facts(described: Json, measurement: Json) -> list[tuple[str, str]]:
    """What could be read; a value that was read before and after stands in one line."""
    facts = []
    for key, value in described.items():
        if key in HIDDEN or key in AFTER or value is None:
            continue
        after = next((described.get(late) for late, early in AFTER.items() if early == key), None)
        change = f" before, {shown(key, after)} after" if after is not None else ""
        facts.append((NAMES.get(key, key.replace("_", " ")), shown(key, value) + change))
    clock = measurement.get("clock") or {}
    if clock:
        facts.append(("clock", f"a reading costs {clock['overhead_ns']} ns, steps of {clock['resolution_ns']} ns"))
    affinity, reason = measurement.get("affinity"), (described.get("missing") or {}).get("affinity")
    facts.append(("pinned to", cpus(affinity) if affinity else f"no CPU: {reason or 'no reason given'}"))
    asked = measurement.get("threads_requested")
    facts.append(("threads", f"{measurement['threads']}" + (f" ({asked} asked for)" if asked else "")))
    return facts


NAMES = {
    "load1": "load average",
    "throttled_periods": "stops for the CPU quota",
    "thermal_throttles": "thermal throttling events",
    "pressure_cpu_some_us": "time somebody waited for a CPU",
    "steal_share": "time stolen by the hypervisor",
    "idle_power_uw": "power when idle",
    "frequency_khz": "frequency before",
    "temperature_mc": "temperature before",
    "cpus_allowed": "CPUs allowed",
    "cpus_online": "CPUs online",
    "quota_cpus": "CPU quota",
    "cpu": "CPU",
    "cpus": "CPUs",
    "memory_bytes": "memory",
    "smt": "SMT",
    "aslr": "ASLR",
}


def shown(key: str, value: Any) -> str:
    """A value of the environment as people read it."""
    if key.endswith("_bytes"):
        return text.size(value)
    if key == "frequency_khz":
        clocks: dict[str, list[str]] = {}
        for cpu, khz in value.items():
            clocks.setdefault(f"{_ghz(khz.get('now'))} of {_ghz(khz.get('max'))}", []).append(cpu)
        return "; ".join(f"{clock} ({', '.join(cpus)})" for clock, cpus in clocks.items())
    if key == "temperature_mc":
        return ", ".join(f"{zone} {celsius / 1000:.0f} °C" for zone, celsius in value.items())
    if key.endswith("_share"):
        return text.percent(value, 2)
    if key.endswith("_us"):
        return text.duration(1000 * value) if value else "0"
    if key.endswith("_uw"):
        return f"{text.number(value / 1e6)} W"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{name}={part}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def cpus(numbers: Sequence[int]) -> str:
    """``CPU 2`` or ``CPUs 0, 1``."""
    return f"CPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _ghz(khz: float | None) -> str:
    return "?" if khz is None else f"{khz / 1e6:.2f} GHz"


def _missing(described: Json) -> dict[str, str]:
    reasons: dict[str, str] = dict(described.get("missing") or {})
    for key, value in described.items():
        if value is None:
            reasons.setdefault(key, "no reason given")
    return reasons


def course(found: Json, measurements: Mapping[str, Json]) -> Any:
    """Medians of the processes, frequency and temperature over the whole measurement; None where no sensor was read."""
    if found["measurement"] is None:
        return None
    measurement = measurements[found["measurement"]]
    tracks = sensors(measurement)
    span = _span(measurement)
    if not any(track.traces for track in tracks) or span is None:
        return None
    traces = []
    for subject in measurement["subjects"]:
        good = [p for p in subject["processes"] if p["steady_ns"] and p.get("steady_begin_ns") is not None]
        points = [(p["steady_begin_ns"] / 1e9, sorted(p["steady_ns"])[len(p["steady_ns"]) // 2] / 1e6) for p in good]
        if points:
            css = color(subject["name"])
            traces.append(plots.Trace(css=css, points=points, label=subject["name"], shape="dots"))
    title = "median of each process, ms"
    shaded = [(a / 1e9, b / 1e9, f"{name} sustained") for name, a, b in sustained_windows(measurement)]
    tracks = [plots.Track(title=title, traces=traces), *(t for t in tracks if t.traces)]
    return both(lambda width: plots.course(tracks, span, width, "s", shaded))


def _span(measurement: Json) -> Point | None:
    times = ((measurement.get("environment") or {}).get("samples") or {}).get("t_ns") or []
    return (times[0] / 1e9, times[-1] / 1e9) if len(times) > 1 else None


def sustained_windows(measurement: Json) -> list[tuple[str, float, float]]:
    """Name, begin and end in ns of each sustained phase."""
    found = []
    for subject in measurement["subjects"]:
        record = subject.get("sustained")
        if record and record["steady_ns"]:
            begin = record["steady_begin_ns"]
            found.append((subject["name"], begin, begin + (record["steady_span_ns"] or sum(record["steady_ns"]))))
    return found


def sensors(measurement: Json, window: tuple[float, float] | None = None, since: float = 0.0) -> list[plots.Track]:
    """Frequency and temperature, over a window (begin, end in ns) or the whole; times in s from ``since``.

    The CPUs that the workers were pinned to are shown, else the fastest and the slowest of each moment.
    """
    described = measurement.get("environment") or {}
    samples: Json = described.get("samples") or {}
    times = samples.get("t_ns") or []
    reasons: Json = described.get("missing") or {}
    wanted = [f"cpu{cpu}" for cpu in measurement.get("affinity") or []]

    def track(key: str, title: str, factor: float, only: Sequence[str] = ()) -> plots.Track:
        rows: Mapping[str, Sequence[float | None]] = samples.get(key) or {}
        kept = {name: rows[name] for name in only if name in rows} or dict(rows)
        if len(kept) > 3:
            pairs = [[v for v in moment if v is not None] for moment in zip(*kept.values(), strict=False)]
            kept = {"highest": [max(p, default=None) for p in pairs], "lowest": [min(p, default=None) for p in pairs]}
        traces = []
        for k, (name, values) in enumerate(sorted(kept.items())):
            points = [
                ((t - since) / 1e9, v / factor)
                for t, v in zip(times, values, strict=False)
                if v is not None and (window is None or window[0] <= t <= window[1])
            ]
            if len(points) > 1:
                traces.append(plots.Trace(css=f"sensor s{k % 3}", points=points, label=name))
        reason = reasons.get(f"samples.{key}") or reasons.get(key) or "no sample in this time"
        return plots.Track(title=title, traces=traces, missing="" if traces else f"not known: {reason}")

    return [
        track("frequency_khz", "frequency, GHz", 1e6, wanted),
        track("temperature_mc", "temperature, °C", 1e3),
    ]
