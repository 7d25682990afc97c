"""The thread that samples sensors while workers run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime_bench.machine import environment, sampler
from tests.unit.runtime_bench import machines
from tests.unit.runtime_bench.machines import CPU, FIRMWARE

DEADLINE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def rows(samples: sampler.Samples) -> int:
    return len((samples.result()["samples"] or {"t_ns": []})["t_ns"])


def more(samples: sampler.Samples) -> None:
    """Wait for two samples: the second was begun after this call."""
    n = rows(samples)
    until(lambda: rows(samples) >= n + 2)


def overwrite(path: Path, text: str) -> None:
    """As the kernel does it: never empty in between."""
    number = os.open(path, os.O_WRONLY)
    os.pwrite(number, text.encode(), 0)
    os.close(number)


def test_samples_of_a_laptop(tmp_path: Path) -> None:
    epoch = time.perf_counter_ns()
    with sampler.sample(machines.laptop(tmp_path), 0.01, epoch_ns=epoch) as samples:
        more(samples)
        overwrite(tmp_path / CPU / "cpufreq/policy1/scaling_cur_freq", "1800000")
        more(samples)
    found = samples.result()
    taken = json.loads(json.dumps(found["samples"]))
    n = len(taken["t_ns"])
    assert n >= 4
    assert taken["period_ms"] == 10
    assert 0 <= taken["t_ns"][0] <= taken["t_ns"][-1] <= time.perf_counter_ns() - epoch
    assert taken["t_ns"] == sorted(set(taken["t_ns"]))
    assert taken["frequency_khz"]["cpu0"] == [2900000] * n
    assert (taken["frequency_khz"]["cpu1"][0], taken["frequency_khz"]["cpu1"][-1]) == (2900001, 1800000)
    assert taken["temperature_mc"]["x86_pkg_temp"] == [63000] * n
    assert taken["power_uw"] == {}
    assert "INA" in found["missing"]["samples.power_uw"]
    assert "throttle_flags" not in taken


def test_energy_goes_on_where_the_counter_starts_again(tmp_path: Path) -> None:
    root = machines.laptop(tmp_path)
    counter = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"  # 8,850 uJ below its range
    with sampler.sample(root, 0.01) as samples:
        more(samples)
        overwrite(counter, "000000262143325000")
        more(samples)
        overwrite(counter, "000000000000001000")
        more(samples)
    taken = samples.result()["samples"]["energy_uj"]["package-0"]
    assert sorted(set(taken)) == [0, 5000, 9850]  # 325,000 - 320,000, then 3,850 to the range and 1,000 from 0
    assert taken == sorted(taken)


def test_a_counter_that_goes_back_without_a_range_ends(tmp_path: Path) -> None:
    root = machines.laptop(tmp_path)
    (tmp_path / "sys/class/powercap/intel-rapl:0/max_energy_range_uj").unlink()
    with sampler.sample(root, 0.01) as samples:
        more(samples)
        overwrite(tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj", "000000000000001000")
        more(samples)
    found = samples.result()
    assert len(found["samples"]["energy_uj"]["package-0"]) < len(found["samples"]["t_ns"])
    assert "went back" in found["missing"]["samples.energy_uj.package-0"]


def test_power_of_a_rail(tmp_path: Path) -> None:
    with sampler.sample(machines.jetson_orin_nano(tmp_path), 0.01, avoid_cpus=(4,)) as samples:
        more(samples)
    taken = samples.result()["samples"]
    assert set(taken["power_uw"]["VDD_IN"]) == {5072 * 1312}  # 6.65 W
    assert list(taken["frequency_khz"]) == ["cpu4"]


def test_flags_are_sampled(tmp_path: Path) -> None:
    root = machines.raspberry_pi_4(tmp_path, "00000\n")
    before = environment.begin(root)
    with sampler.sample(root, 0.01) as samples:
        more(samples)
        overwrite(tmp_path / FIRMWARE, "00004")
        more(samples)
        overwrite(tmp_path / FIRMWARE, "00000")
        more(samples)
    found = samples.result()
    assert set(found["samples"]["throttle_flags"]["firmware"]) == {0, 4}
    assert environment.finish(before, found)["thermal_throttles"] == 1
    assert environment.finish(before)["thermal_throttles"] == 0  # nobody looked in between


def test_a_sensor_that_fails_ends_alone(tmp_path: Path) -> None:
    with sampler.sample(machines.laptop(tmp_path), 0.01) as samples:
        more(samples)
        (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("")
        more(samples)
    found = samples.result()
    n = len(found["samples"]["t_ns"])
    assert 1 <= len(found["samples"]["temperature_mc"]["x86_pkg_temp"]) < n
    assert len(found["samples"]["temperature_mc"]["acpitz"]) == n
    assert "no number" in found["missing"]["samples.temperature_mc.x86_pkg_temp"]


def test_an_error_of_the_driver_ends_one_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machines.jetson_orin_nano(tmp_path)
    read = os.pread
    broken = threading.Event()
    names: dict[int, str] = {}

    def failing(number: int, size: int, offset: int) -> bytes:
        name = names.setdefault(number, Path(f"/proc/self/fd/{number}").readlink().name)
        if broken.is_set() and name == "curr1_input":
            raise OSError(121, "Remote I/O error")
        return read(number, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    with sampler.sample(root, 0.01) as samples:
        more(samples)
        broken.set()
        more(samples)
    found = samples.result()
    assert "Remote I/O error" in found["missing"]["samples.power_uw.VDD_IN"]
    assert len(found["samples"]["power_uw"]["VDD_SOC"]) == len(found["samples"]["t_ns"])


def test_nothing_to_read_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with sampler.sample(str(tmp_path)) as samples:
        samples.measure_idle(DEADLINE_S)  # does not wait
        assert threading.active_count() == before
    found = samples.result()
    assert found["samples"] is None
    assert found["idle_power_uw"] is None
    assert {"samples", "idle_power_uw", "samples.energy_uj", "samples.frequency_khz"} <= set(found["missing"])


def test_idle_power(tmp_path: Path) -> None:
    with sampler.sample(machines.jetson_orin_nano(tmp_path), 0.01) as samples:
        samples.measure_idle(0.2)
        overwrite(tmp_path / "sys/class/hwmon/hwmon1/curr1_input", "2624")
        more(samples)
    assert samples.result()["idle_power_uw"] == pytest.approx(5072 * 1312, abs=1)  # nothing of what came after


def test_idle_power_is_missing_where_nobody_waited(tmp_path: Path) -> None:
    with sampler.sample(machines.jetson_orin_nano(tmp_path), 0.01) as samples:
        more(samples)
    found = samples.result()
    assert (found["idle_power_uw"], found["missing"]["idle_power_uw"]) == (None, "no idle time was sampled")


def test_no_power_sensor_no_wait(tmp_path: Path) -> None:
    with sampler.sample(machines.raspberry_pi_5(tmp_path), 0.01) as samples:
        begin = time.monotonic()
        samples.measure_idle(10 * DEADLINE_S)
        assert time.monotonic() - begin < DEADLINE_S
        more(samples)
    assert samples.result()["missing"]["idle_power_uw"] == "no energy or power sensor"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_thread_ends_with_the_block(tmp_path: Path, error: type[BaseException]) -> None:
    begin = time.monotonic()
    block = sampler.sample(machines.laptop(tmp_path), 10 * DEADLINE_S)
    samples = block.__enter__()
    until(lambda: rows(samples) == 1)
    assert not block.__exit__(error, error(), None)  # it is passed on
    assert not samples._thread.is_alive()
    assert time.monotonic() - begin < DEADLINE_S  # although the next sample was due much later
    assert rows(samples) == 2  # one more at the end
    assert all(not _is_open(number) for number in samples._files.values())


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reads hang once this is set, as on a bus that is stuck."""
    read, hang, release = os.pread, threading.Event(), threading.Event()

    def stuck(number: int, size: int, offset: int) -> bytes:
        if hang.is_set():
            release.wait(DEADLINE_S)
        return read(number, size, offset)

    monkeypatch.setattr(os, "pread", stuck)
    monkeypatch.setattr(sampler, "_JOIN_S", 0.05)
    yield hang
    release.set()


def test_a_hanging_sensor_holds_nothing_up(tmp_path: Path, hanging: threading.Event) -> None:
    begin = time.monotonic()
    with sampler.sample(machines.laptop(tmp_path), 0.01) as samples:
        more(samples)
        hanging.set()
    assert time.monotonic() - begin < DEADLINE_S
    assert rows(samples) >= 2


def test_the_thread_leaves_the_workers_cpus(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two CPUs")
    root = machines.laptop(tmp_path)
    with sampler.sample(root, 0.01, avoid_cpus=(min(allowed),)) as samples:
        more(samples)
        assert os.sched_getaffinity(samples._thread.native_id or 0) == allowed - {min(allowed)}
        assert os.sched_getaffinity(0) == allowed  # and nobody else's changed
    with sampler.sample(root, 0.01, avoid_cpus=sorted(allowed)) as samples:
        until(lambda: samples._ready.is_set())
        assert os.sched_getaffinity(samples._thread.native_id or 0) == allowed  # nowhere else to go


def test_a_long_record_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MOST_SAMPLES", 8)
    with sampler.sample(machines.laptop(tmp_path), 0.001) as samples:
        until(lambda: samples._period_s >= 0.004)
    taken = samples.result()["samples"]
    assert len(taken["t_ns"]) <= 9
    assert taken["period_ms"] >= 4
    assert {len(row) for row in taken["frequency_khz"].values()} == {len(taken["t_ns"])}


def test_no_thread_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with sampler.sample(machines.laptop(tmp_path)) as samples:
        samples.measure_idle(0.01)
    found = samples.result()
    assert found["samples"] is None
    assert found["missing"]["samples"] == "can't start new thread"
