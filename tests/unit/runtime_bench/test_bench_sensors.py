"""Readers of sensors and counters of throttling, and the thread that samples them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime_bench.machine import environment, sensors
from tests.unit.runtime_bench import machines
from tests.unit.runtime_bench.machines import CPU, FIRMWARE, tree

DEADLINE_S = 30.0


def by_quantity(found: sensors.Found) -> dict[str, list[str]]:
    return {
        quantity: [sensor.name for sensor in found.sensors if sensor.quantity == quantity]
        for quantity in sensors.QUANTITIES
    }


def test_sensors_of_a_laptop(tmp_path: Path) -> None:
    found = sensors.find(machines.laptop(tmp_path))
    assert by_quantity(found) == {
        "energy_uj": ["package-0", "package-0/core", "psys"],  # not once more from intel-rapl-mmio
        "power_uw": [],
        "frequency_khz": ["cpu0", "cpu1"],
        "temperature_mc": ["x86_pkg_temp", "acpitz", "acpitz thermal_zone2", "coretemp Package id 0"],
        "throttle_flags": [],
    }
    assert {sensor.range_uj for sensor in found.sensors if sensor.quantity == "energy_uj"} == {262143328850}
    assert set(found.missing) == {"power_uw"}


def test_sensors_of_a_jetson(tmp_path: Path) -> None:
    found = sensors.find(machines.jetson_orin_nano(tmp_path))
    assert by_quantity(found)["power_uw"] == ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]
    assert by_quantity(found)["temperature_mc"] == ["cpu-thermal", "tj-thermal"]
    assert "is off" in found.missing["temperature_mc.cv0-thermal"]
    assert "intel-rapl" in found.missing["energy_uj"]
    four = [sensor for sensor in found.sensors if sensor.name in ("cpu0", "cpu1", "cpu2", "cpu3")]
    assert len(four) == 4
    assert len({sensor.paths for sensor in four}) == 1  # one policy, one file


def test_sensors_of_another_ina(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon2"
    files = {f"{chip}/name": "ina238\n", f"{chip}/power1_input": "41500000\n", f"{chip}/in1_label": "VIN\n"}
    assert by_quantity(sensors.find(tree(tmp_path, files)))["power_uw"] == ["VIN"]


def test_only_wanted_frequencies(tmp_path: Path) -> None:
    root = machines.jetson_orin_nano(tmp_path)
    assert by_quantity(sensors.find(root, [1, 5]))["frequency_khz"] == ["cpu1", "cpu5"]


def test_a_root_with_pattern_characters(tmp_path: Path) -> None:
    root = machines.laptop(tmp_path / "a[b]*")
    assert by_quantity(sensors.find(root))["frequency_khz"] == ["cpu0", "cpu1"]


def test_energy_for_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(path: str, **options: Any) -> Any:
        if path.endswith("energy_uj"):
            raise PermissionError(13, "Permission denied")
        return Path(path).open(**options)

    monkeypatch.setattr(sensors, "open", refusing, raising=False)
    found = sensors.find(machines.laptop(tmp_path))
    assert by_quantity(found)["energy_uj"] == []
    assert found.missing["energy_uj"] == "only root may read energy_uj"


@pytest.mark.parametrize("text", ["", "max", "12.5", "-", "0x10", "9" * 40, "1 2"])
def test_what_is_no_number(text: str) -> None:
    assert sensors.parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("50005", 0x50005), ("0x80008", 0x80008), ("0", 0), ("", None), ("g", None)]
)
def test_hexadecimal_flags(text: str, value: int | None) -> None:
    assert sensors.parse_number(text, 16) == value


NONE, CAPPED, THROTTLED, SOFT = 0, 1 << 1, 1 << 2, 1 << 3
UNDER_VOLTAGE = 1 << 0


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        ([], 0),
        ([NONE, NONE], 0),
        ([THROTTLED], 1),
        ([NONE, THROTTLED, NONE, THROTTLED, NONE], 2),
        ([THROTTLED, THROTTLED, THROTTLED], 1),
        ([NONE, SOFT, CAPPED | SOFT, NONE], 2),
        ([UNDER_VOLTAGE, UNDER_VOLTAGE << 16], 0),  # by itself it lowers no clock
        ([THROTTLED << 16, THROTTLED << 16], 0),  # since boot, not now
        ([NONE, THROTTLED << 16], 1),  # between two readings
        ([THROTTLED << 16, (THROTTLED << 16) | THROTTLED, THROTTLED << 16], 1),
        ([THROTTLED, THROTTLED << 16, NONE], 1),  # remembered once more, the same event
        ([0x50000, 0x50005], 1),  # for want of voltage
    ],
)
def test_flags_of_the_raspberry_pi(flags: list[int], times: int) -> None:
    assert sensors.firmware_throttles(flags) == times


def test_throttles_of_a_jetson(tmp_path: Path) -> None:
    root = machines.jetson_orin_nano(tmp_path)
    before = sensors.throttle_counters(root)
    fan = {"sys/class/thermal/cooling_device0/cur_state": "9\n"}
    assert sensors.throttles(before, sensors.throttle_counters(tree(tmp_path, fan))) == 0  # a fan slows nothing
    tree(tmp_path, {"sys/class/hwmon/hwmon0/oc2_event_cnt": "5\n"})
    assert sensors.throttles(before, sensors.throttle_counters(root)) == 2
    tree(tmp_path, {"sys/class/thermal/cooling_device1/stats/total_trans": "12\n"})
    assert sensors.throttles(before, sensors.throttle_counters(root)) == 6


def test_a_cooler_that_stays_on_is_told(tmp_path: Path) -> None:
    cooler = "sys/class/thermal/cooling_device3"
    root = tree(tmp_path, {f"{cooler}/type": "thermal-cpufreq-0\n", f"{cooler}/cur_state": "0\n"})
    off = sensors.throttle_counters(root)
    on = sensors.throttle_counters(tree(tmp_path, {f"{cooler}/cur_state": "4\n"}))
    assert [sensors.throttles(a, b) for a, b in ((off, off), (off, on), (on, on), (on, off))] == [0, 1, 1, 1]


def test_counters_that_start_again_are_no_events(tmp_path: Path) -> None:
    root = machines.laptop(tmp_path)
    before = sensors.throttle_counters(root)
    tree(tmp_path, {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "0\n"})
    assert sensors.throttles(before, sensors.throttle_counters(root)) == 0


def test_no_counter_is_no_zero(tmp_path: Path) -> None:
    for make in (machines.container, machines.raspberry_pi_5):  # its kernel shows neither flags nor coolers of the CPU
        nothing = sensors.throttle_counters(make(tmp_path / make.__name__))
        assert sensors.throttles(nothing, nothing) is None


@pytest.mark.parametrize(
    "path", [FIRMWARE, "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"]
)
def test_firmware_flags(tmp_path: Path, path: str) -> None:
    root = tree(tmp_path, {path: "0\n"})
    before = environment.begin(root)
    assert environment.finish(before)["thermal_throttles"] == 0
    meanwhile = {"samples": {"throttle_flags": {"firmware": [0, THROTTLED, 0]}}}
    assert environment.finish(before, meanwhile)["thermal_throttles"] == 1
    tree(tmp_path, {path: "80008\n"})
    assert environment.finish(before)["thermal_throttles"] == 1
