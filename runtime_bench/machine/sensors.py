"""Clock frequencies, temperatures, energy, power and throttling, from the files of Linux below ``/sys``.

Nothing is started and nothing but files is read. Sources: the kernel's ABI documents (cpufreq, thermal, powercap,
hwmon), its drivers ina3221, therm_throt, raspberrypi-hwmon and raspberrypi firmware, NVIDIA's Jetson guide.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

QUANTITIES = ("energy_uj", "power_uw", "frequency_khz", "temperature_mc", "throttle_flags")
"""In the order in which they are read: what is integrated over time first, so that its time is known best."""

_CPU = "sys/devices/system/cpu"
_CPU_COOLERS = ("cpufreq-", "thermal-cpufreq-")
_CPU_THERMOMETERS = ("coretemp", "k10temp", "zenpower")
_TEMPERATURES_MC = (-60000, 200000)
_FIRMWARE = (
    "sys/devices/platform/soc*/soc*:firmware/get_throttled",
    "sys/devices/platform/soc*:firmware/get_throttled",
)
_FIRMWARE_BITS = (1, 2, 3)


class Sensor(NamedTuple):
    """A quantity that can be read again and again.

    Attributes:
        quantity: one of ``QUANTITIES``.
        name: such as ``cpu0``, ``package-0``, ``VDD_IN``; unique within the quantity.
        paths: one file, or two whose product is the value (millivolts and milliamperes make microwatts).
        range_uj: where an energy counter starts again at 0; None if unknown or not a counter.
        base: of the number in the file.
    """

    quantity: str
    name: str
    paths: Tuple[str, ...]
    range_uj: Optional[int] = None
    base: int = 10


class Found(NamedTuple):
    """Sensors that can be read now, and why others cannot: by quantity, or by ``quantity.name``."""

    sensors: List[Sensor]
    missing: Dict[str, str]


class Throttles(NamedTuple):
    """What tells that clocks were lowered for heat, current or voltage; every mapping is by device.

    Attributes:
        counts: events since boot, one counter a device (x86 cores, Jetson over-current alarms, CPU coolers).
        packages: events since boot of x86 packages; every CPU of a package shows the same.
        states: level of the coolers that slow CPUs; 0 is no cooling.
        flags: of the Raspberry Pi firmware.
    """

    counts: Dict[str, int]
    packages: Dict[str, int]
    states: Dict[str, int]
    flags: Optional[int]


def read_text(*parts: str) -> str:
    """The text of a file, without what surrounds it; empty where it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 20).strip("\0 \t\n")
    except (OSError, ValueError):
        return ""


def read_number(*parts: str) -> Optional[int]:
    """The whole number in a file; None where there is none."""
    return parse_number(read_text(*parts))


def parse_number(text: str, base: int = 10) -> Optional[int]:
    """A whole number, or None; a hexadecimal one may start with 0x."""
    pattern = r"(?:0x)?[0-9a-fA-F]{1,16}" if base == 16 else r"-?[0-9]{1,19}"
    return int(text, base) if re.fullmatch(pattern, text) else None


def find(root: str = "/", cpus: Optional[Sequence[int]] = None) -> Found:
    """All sensors under ``root`` that can be read now.

    Args:
        root: where ``sys`` lies.
        cpus: whose frequencies are wanted; None means all.
    """
    sensors: List[Sensor] = []
    missing: Dict[str, str] = {}
    for quantity, candidates, absent in (
        ("energy_uj", _energy(root), "no energy counter: no intel-rapl in /sys/class/powercap"),
        ("power_uw", _power(root), "no power monitor: no INA chip in /sys/class/hwmon"),
        ("frequency_khz", _frequency(root, cpus), "no cpufreq in /sys"),
        ("temperature_mc", _temperature(root), "no thermal zone in /sys/class/thermal"),
        ("throttle_flags", _firmware(root), ""),
    ):
        tried = list(candidates)
        good = []
        for sensor in tried:
            reason = _unreadable(sensor)
            if reason is None:
                good.append(sensor)
            else:
                missing["{}.{}".format(quantity, sensor.name)] = reason
        if not tried and absent:
            missing[quantity] = absent
        elif tried and not good:
            missing[quantity] = missing["{}.{}".format(quantity, tried[0].name)]
        sensors += good
    return Found(sensors, missing)


def frequencies(root: str = "/") -> Optional[Dict[str, Dict[str, Optional[int]]]]:
    """``{"cpu0": {"now", "min", "max"}}`` in kHz, the limits as they are now; None where there is no cpufreq."""
    result = {}
    for name, folder in _cpufreq(root):
        files = (("now", "scaling_cur_freq"), ("min", "scaling_min_freq"), ("max", "scaling_max_freq"))
        values = {key: read_number(folder, file) for key, file in files}
        if any(value is not None for value in values.values()):
            result[name] = values
    return result or None


def temperatures(root: str = "/") -> Optional[Dict[str, int]]:
    """Millidegrees Celsius by zone; None where there is none."""
    found = {sensor.name: read_number(sensor.paths[0]) for sensor in _temperature(root) if _unreadable(sensor) is None}
    return {name: value for name, value in found.items() if value is not None} or None


def throttle_counters(root: str = "/") -> Throttles:
    """Read all that tells of throttling; ``throttles`` compares two such readings."""
    counts: Dict[str, Optional[int]] = {}
    packages: Dict[str, Optional[int]] = {}
    states: Dict[str, Optional[int]] = {}
    for folder in listed(root, _CPU, "cpu[0-9]*"):
        name = os.path.basename(folder)
        counts[name] = read_number(folder, "thermal_throttle/core_throttle_count")
        packages[name] = read_number(folder, "thermal_throttle/package_throttle_count")
    for path in listed(root, "sys/class/hwmon", "hwmon*/oc*_event_cnt"):
        counts[path] = read_number(path)
    for folder in listed(root, "sys/class/thermal", "cooling_device[0-9]*"):
        if read_text(folder, "type").startswith(_CPU_COOLERS):
            counts[folder] = read_number(folder, "stats/total_trans")
            states[folder] = read_number(folder, "cur_state")
    flags = [parse_number(read_text(sensor.paths[0]), sensor.base) for sensor in _firmware(root)]
    return Throttles(_known(counts), _known(packages), _known(states), flags[0] if flags else None)


def throttles(before: Throttles, after: Throttles, flags: Sequence[int] = ()) -> Optional[int]:
    """How many signs of throttling appeared between two readings; None where nothing on this machine would tell.

    Counts are not comparable between machines: what matters is whether there are any.

    Args:
        before: the first reading.
        after: the second.
        flags: of the Raspberry Pi firmware, read in between.
    """
    if not (after.counts or after.packages or after.states or after.flags is not None):
        return None
    risen = {name: max(count - before.counts.get(name, count), 0) for name, count in after.counts.items()}
    packages = [max(count - before.packages.get(name, count), 0) for name, count in after.packages.items()]
    held = [name for name in after.states if after.states[name] or before.states.get(name)]
    total = sum(risen.values()) + max(packages, default=0) + sum(1 for name in held if not risen.get(name))
    read = [before.flags, *flags, after.flags]
    return total + firmware_throttles([value for value in read if value is not None])


def firmware_throttles(flags: Sequence[int]) -> int:
    """How often a Raspberry Pi began to lower its clocks, from successive readings of ``get_throttled``.

    Bits 1, 2 and 3 (frequency capped, throttled, soft temperature limit) hold now; 16 places higher they remember.
    How long they remember depends on the kernel: a remembered bit counts only when it appears between readings.
    """
    total = 0
    for bit in _FIRMWARE_BITS:
        was_live, remembered = False, True
        for value in flags:
            live, remembers = bool(value >> bit & 1), bool(value >> (bit + 16) & 1)
            total += not was_live and (live or (remembers and not remembered))
            was_live, remembered = live, remembers
    return total


def _known(values: Mapping[str, Optional[int]]) -> Dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def listed(root: str, folder: str, pattern: str) -> List[str]:
    """Matching paths, ordered by the numbers in them."""
    found = glob.glob(os.path.join(glob.escape(os.path.join(root, folder)), pattern))
    return sorted(
        found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", path)]
    )


def _unreadable(sensor: Sensor) -> Optional[str]:
    """Why a sensor cannot be used; None if it can."""
    for path in sensor.paths:
        try:
            with open(path, encoding="ascii", errors="replace") as stream:
                value = parse_number(stream.read(64).strip(), sensor.base)
        except PermissionError:
            return "only root may read {}".format(os.path.basename(path))
        except OSError as error:
            return "{}: {}".format(os.path.basename(path), error.strerror or error)
        if value is None:
            return "{} holds no number".format(os.path.basename(path))
        low, high = _TEMPERATURES_MC
        if sensor.quantity == "temperature_mc" and not low <= value <= high:
            return "{} is no temperature: the sensor is off".format(value)
    return None


def _cpufreq(root: str) -> Iterator[Tuple[str, str]]:
    for folder in listed(root, _CPU, "cpu[0-9]*/cpufreq"):
        yield os.path.basename(os.path.dirname(folder)), folder


def _frequency(root: str, cpus: Optional[Sequence[int]]) -> Iterator[Sensor]:
    for name, folder in _cpufreq(root):
        if cpus is None or int(name[3:]) in cpus:
            # CPUs of one policy share the file, which is then read once
            yield Sensor("frequency_khz", name, (os.path.realpath(os.path.join(folder, "scaling_cur_freq")),))


def _temperature(root: str) -> Iterator[Sensor]:
    used: Set[str] = set()
    for folder in listed(root, "sys/class/thermal", "thermal_zone[0-9]*"):
        name = read_text(folder, "type") or os.path.basename(folder)
        yield Sensor("temperature_mc", _unique(name, folder, used), (os.path.join(folder, "temp"),))
    for folder in listed(root, "sys/class/hwmon", "hwmon[0-9]*"):
        chip = read_text(folder, "name")
        path = os.path.join(folder, "temp1_input")
        if chip in _CPU_THERMOMETERS and os.path.exists(path):
            label = read_text(folder, "temp1_label")
            yield Sensor("temperature_mc", _unique("{} {}".format(chip, label).strip(), folder, used), (path,))


def _energy(root: str) -> Iterator[Sensor]:
    """Zones of RAPL. ``intel-rapl-mmio`` shows the same packages once more and is left out."""
    used: Set[str] = set()
    names: Dict[str, str] = {}
    for folder in listed(root, "sys/class/powercap", "intel-rapl:[0-9]*"):
        zone = os.path.basename(folder)
        parent = names.get(zone.rpartition(":")[0])
        own = read_text(folder, "name") or zone
        names[zone] = _unique(own if parent is None else "{}/{}".format(parent, own), folder, used)
        range_uj = read_number(folder, "max_energy_range_uj")
        yield Sensor("energy_uj", names[zone], (os.path.join(folder, "energy_uj"),), range_uj or None)


def _power(root: str) -> Iterator[Sensor]:
    """Rails behind INA chips: three channels of an INA3221, or the product that the other drivers compute."""
    used: Set[str] = set()
    for folder in listed(root, "sys/class/hwmon", "hwmon[0-9]*"):
        chip = read_text(folder, "name")
        if chip.startswith("ina3221"):
            for channel in (1, 2, 3):  # 4 to 6 are shunt voltages, 7 their sum
                label = read_text(folder, "in{}_label".format(channel))
                files = tuple(os.path.join(folder, kind.format(channel)) for kind in ("in{}_input", "curr{}_input"))
                if label and label != "NC" and all(os.path.exists(path) for path in files):
                    yield Sensor("power_uw", _unique(label, folder, used), files)
        elif chip.startswith("ina") and os.path.exists(os.path.join(folder, "power1_input")):
            label = read_text(folder, "power1_label") or read_text(folder, "in1_label") or chip
            yield Sensor("power_uw", _unique(label, folder, used), (os.path.join(folder, "power1_input"),))


def _firmware(root: str) -> Iterator[Sensor]:
    paths = [path for pattern in _FIRMWARE for path in listed(root, "", pattern)]
    if paths:
        yield Sensor("throttle_flags", "firmware", (paths[0],), None, 16)


def _unique(name: str, folder: str, used: Set[str]) -> str:
    """The name, with the folder's where it is taken."""
    unique = "{} {}".format(name, os.path.basename(folder)) if name in used else name
    used.add(unique)
    return unique
