"""Sensors read at a steady rate by a thread of the parent, while the workers run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from runtime_bench.judge import energy
from runtime_bench.machine import sensors

PERIOD_S = 0.2

IDLE_S = 1.2

MOST_SAMPLES = 6000
"""Kept a series; beyond it every second sample goes and the period doubles, so that a record stays small."""

_JOIN_S = 1.0


class Samples:
    """What the thread has read so far. Made by ``sample``."""

    def __init__(self, found: sensors.Found, period_s: float, avoid_cpus: Sequence[int], epoch_ns: int) -> None:
        self._missing = {"samples.{}".format(key): reason for key, reason in found.missing.items()}
        self._alive = list(found.sensors)
        self._series: Dict[sensors.Sensor, List[int]] = {sensor: [] for sensor in found.sensors}
        self._counters: Dict[sensors.Sensor, Tuple[int, int]] = {}
        self._files: Dict[str, int] = {}
        self._times: List[int] = []
        self._period_s = period_s
        self._avoid = set(avoid_cpus)
        self._epoch_ns = epoch_ns
        self._idle: Optional[Tuple[int, int]] = None
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)

    def measure_idle(self, seconds: float = IDLE_S) -> None:
        """Wait while nothing of ours runs, so that the idle power is known; call it before the first worker.

        Returns at once where no sensor tells energy or power.
        """
        powered = any(sensor.quantity in ("energy_uj", "power_uw") for sensor in self._alive)
        if not powered or self._thread.ident is None or not self._ready.wait(_JOIN_S):
            return
        begin = self._now()
        time.sleep(seconds)
        self._idle = (begin, self._now())

    def result(self) -> Dict[str, Any]:
        """``{"samples", "idle_power_uw", "missing"}`` to be merged into the environment of a measurement.

        ``samples`` is ``{"period_ms", "t_ns"}`` with ``{name: values}`` for each of ``sensors.QUANTITIES``, values in
        the unit of the name, in step with ``t_ns`` (since the epoch); ``throttle_flags`` only on a Raspberry Pi.
        Energy is cumulative from the first sample. A sensor that failed has a shorter series and its reason in
        ``missing``. ``samples`` is None where nothing could be read.
        """
        with self._lock:
            times, missing = list(self._times), dict(self._missing)
            series = {sensor: list(values) for sensor, values in self._series.items() if values}
        if not times:
            missing.setdefault("samples", "no sensor of frequency, temperature, energy or power can be read")
            missing["idle_power_uw"] = "no energy or power sensor was sampled"
            return {"samples": None, "idle_power_uw": None, "missing": missing}
        samples: Dict[str, Any] = {"period_ms": round(self._period_s * 1000), "t_ns": times}
        for quantity in sensors.QUANTITIES:
            samples[quantity] = {s.name: values for s, values in series.items() if s.quantity == quantity}
        if not samples["throttle_flags"]:
            del samples["throttle_flags"]
        idle_uw, reason = self._idle_power(samples)
        if idle_uw is None:
            missing["idle_power_uw"] = reason
        return {"samples": samples, "idle_power_uw": idle_uw, "missing": missing}

    def _idle_power(self, samples: Mapping[str, Any]) -> Tuple[Optional[int], str]:
        if energy.source(samples) is None:
            return None, "no energy or power sensor"
        if self._idle is None:
            return None, "no idle time was sampled"
        power = energy.mean_power_uw(samples, *self._idle)
        return (None if power is None else round(power)), "too few samples while idle"

    def _now(self) -> int:
        return time.perf_counter_ns() - self._epoch_ns

    def _start(self) -> None:
        if self._alive:
            try:
                self._thread.start()
            except RuntimeError as error:  # a limit on threads
                self._missing["samples"] = str(error)

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)  # a sensor that hangs in the kernel must not hold up the measurement

    def _run(self) -> None:
        self._step_aside()
        try:
            self._open()
            due = time.perf_counter()
            while True:
                self._read_all()
                self._ready.set()
                due = max(due + self._period_s, time.perf_counter())
                if self._stop.wait(due - time.perf_counter()):
                    break
            self._read_all()  # so that the last window ends within the samples
        finally:
            for number in self._files.values():
                os.close(number)

    def _step_aside(self) -> None:
        """Leave the workers' CPUs, if others are allowed. On Linux this moves the calling thread only."""
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                others = os.sched_getaffinity(0) - self._avoid
                if others:
                    os.sched_setaffinity(0, others)

    def _open(self) -> None:
        for sensor in list(self._alive):
            for path in sensor.paths:
                if path not in self._files and sensor in self._alive:
                    try:
                        self._files[path] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                    except OSError as error:
                        self._drop(sensor, error.strerror or str(error))

    def _read_all(self) -> None:
        now = self._now()
        texts: Dict[str, str] = {}
        values: Dict[sensors.Sensor, int] = {}
        for sensor in list(self._alive):
            try:
                value = self._read(sensor, texts)
                values[sensor] = self._unwrapped(sensor, value) if sensor.quantity == "energy_uj" else value
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._drop(sensor, "failed after {:.1f} s: {}".format(now / 1e9, reason))
        with self._lock:
            self._times.append(now)
            for sensor, value in values.items():
                self._series[sensor].append(value)
            if len(self._times) > MOST_SAMPLES:
                self._period_s *= 2
                for series in (self._times, *self._series.values()):
                    del series[1::2]

    def _read(self, sensor: sensors.Sensor, texts: Dict[str, str]) -> int:
        product = 1
        for path in sensor.paths:
            if path not in texts:
                texts[path] = os.pread(self._files[path], 64, 0).decode("ascii", "replace").strip()
            number = sensors.parse_number(texts[path], sensor.base)
            if number is None:
                raise ValueError("no number")
            product *= number
        return product

    def _unwrapped(self, sensor: sensors.Sensor, value: int) -> int:
        """Energy since the first sample; a counter that starts again at 0 goes on."""
        last, total = self._counters.get(sensor, (value, 0))
        if value < last and sensor.range_uj is None:
            raise ValueError("the counter went back and its range is not known")
        total += value - last + (sensor.range_uj or 0 if value < last else 0)
        self._counters[sensor] = (value, total)
        return total

    def _drop(self, sensor: sensors.Sensor, reason: str) -> None:
        self._alive.remove(sensor)
        with self._lock:
            self._missing["samples.{}.{}".format(sensor.quantity, sensor.name)] = reason


@contextlib.contextmanager
def sample(
    root: str = "/",
    period_s: float = PERIOD_S,
    avoid_cpus: Sequence[int] = (),
    epoch_ns: Optional[int] = None,
) -> Iterator[Samples]:
    """Read the sensors below ``root`` every ``period_s`` seconds until the block ends.

    Args:
        root: where ``proc`` and ``sys`` lie.
        period_s: between samples.
        avoid_cpus: CPUs of the workers: the thread stays away from them where it may run elsewhere. Frequencies are
            those of these CPUs; of all, if there are none.
        epoch_ns: what ``time.perf_counter_ns`` said when the measurement began; now, if None.

    Without a readable sensor no thread is started. A sensor that fails ends its own series and nothing else.
    """
    epoch = time.perf_counter_ns() if epoch_ns is None else epoch_ns
    samples = Samples(sensors.find(root, list(avoid_cpus) or None), period_s, avoid_cpus, epoch)
    samples._start()
    try:
        yield samples
    finally:
        samples._end()
