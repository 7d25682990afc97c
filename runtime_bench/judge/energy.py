"""Energy of a call, from the samples that were taken while the calls ran. Pure functions of a measurement.

The counters see the whole package or module, other work included. What the machine needs when idle is subtracted, so
the figure is what the calls add. The interval tells how much processes differ, not how exact the sensor is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from runtime_bench.statistics import stats

LEAST_SAMPLES = 3
"""Samples that must lie within a window."""

TOTAL_RAILS = ("VDD_IN", "VIN")
"""Rails that feed everything else: Jetson Orin NX, Orin Nano and Xavier NX; Jetson Thor."""

PART_RAILS = ("VDDQ_VDD2_1V8AO",)
"""Rails fed by another measured one (VIN_SYS_5V0 of Jetson AGX Orin)."""


class Source(NamedTuple):
    """Which series make up the energy: ``energy_uj`` (cumulative) or ``power_uw``, and their names."""

    quantity: str
    names: List[str]


def source(samples: Optional[Mapping[str, Any]]) -> Optional[Source]:
    """Choose the series: all RAPL packages with their memory, else the rail that feeds all, else the sum of rails."""
    counters, rails = ((samples or {}).get(quantity) or {} for quantity in ("energy_uj", "power_uw"))
    packages = [name for name in counters if name.startswith("package")]
    names = [name for name in packages if "/" not in name or name.endswith("/dram")]
    if names:
        return Source("energy_uj", names)
    total = [name for name in TOTAL_RAILS if name in rails][:1]
    names = total or [name for name in rails if name not in PART_RAILS]
    return Source("power_uw", names) if names else None


def mean_power_uw(samples: Mapping[str, Any], begin_ns: int, end_ns: int) -> Optional[float]:
    """Average power in microwatts over a window, idle included, from the samples that lie in it.

    A counter gives the growth between the first and the last of them, power is integrated between them by the
    trapezoidal rule. Samples outside belong to other work, so that nothing is interpolated across the window's ends.
    None where fewer than ``LEAST_SAMPLES`` lie in it or a sensor failed before its end.
    """
    chosen = source(samples)
    times: Sequence[int] = samples["t_ns"]
    inside = slice(bisect_left(times, begin_ns), bisect_right(times, end_ns))
    moments = times[inside]
    if chosen is None or len(moments) < LEAST_SAMPLES:
        return None
    total = 0.0
    for name in chosen.names:
        values = samples[chosen.quantity][name][inside]
        if len(values) < len(moments):
            return None
        if chosen.quantity == "energy_uj":
            total += (values[-1] - values[0]) * 1e9  # microjoules a nanosecond are 1e9 uW
        else:
            pairs = zip(moments, moments[1:], values, values[1:])
            total += sum((t1 - t0) * (a + b) / 2 for t0, t1, a, b in pairs)
    return total / (moments[-1] - moments[0])


def per_call(subject: Mapping[str, Any], environment: Mapping[str, Any], confidence: float = 0.95) -> Dict[str, Any]:
    """Energy of one call of a subject beyond what the idle machine needs, over its processes' steady phases.

    Args:
        subject: of a measurement.
        environment: of the same measurement.
        confidence: of the interval.

    Returns ``{"joules_per_call", "low", "high", "idle_watts", "processes", "source"}``: the mean over processes with
    its t interval (``low`` and ``high`` are None with one process); below 0 where noise exceeds the calls. Else
    ``{"joules_per_call": None, "reason"}``.
    """
    samples = environment.get("samples")
    chosen = source(samples)
    if samples is None or chosen is None:
        missing = environment.get("missing", {})
        reasons = [missing.get(key) for key in ("samples.energy_uj", "samples.power_uw", "samples")]
        return _none("; ".join(reason for reason in reasons if reason) or "no energy or power sensor was sampled")
    idle_uw = environment.get("idle_power_uw")
    if idle_uw is None:
        return _none(environment.get("missing", {}).get("idle_power_uw") or "the idle power was not measured")
    good = [process for process in subject["processes"] if process["steady_ns"] and not process["error"]]
    values = [_process(samples, process, idle_uw) for process in good]
    known = [value for value in values if value is not None]
    if not known:
        text = "no process whose steady phase holds {} samples of every {} ms"
        return _none(text.format(LEAST_SAMPLES, samples.get("period_ms", "?")))
    center, half = stats.mean(known), None
    if len(known) > 1:
        quantile = stats.t_quantile((1 + confidence) / 2, len(known) - 1)
        half = quantile * stats.standard_deviation(known) / len(known) ** 0.5
    return {
        "joules_per_call": center,
        "low": None if half is None else center - half,
        "high": None if half is None else center + half,
        "idle_watts": idle_uw * 1e-6,
        "processes": len(known),
        "source": "{}: {}".format("RAPL" if chosen.quantity == "energy_uj" else "INA", " + ".join(chosen.names)),
    }


def _process(samples: Mapping[str, Any], process: Mapping[str, Any], idle_uw: float) -> Optional[float]:
    """Joules of a call of one process: the power above idle, times the length of the steady phase, over its calls."""
    begin, span = process.get("steady_begin_ns"), process.get("steady_span_ns")
    if begin is None or not span:
        return None
    power = mean_power_uw(samples, begin, begin + span)
    calls = len(process["steady_ns"]) * process["every"]
    return None if power is None else (power - idle_uw) * 1e-15 * span / calls


def _none(reason: str) -> Dict[str, Any]:
    return {"joules_per_call": None, "reason": reason}
