"""Machines as folders: what /proc, /sys, /etc and /run of a board would hold, as far as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = "sys/devices/system/cpu"


def tree(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, target in (links or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return str(root)


def policy(
    name: str, cpus: range, now: int, low: int, high: int, governor: str
) -> tuple[dict[str, str], dict[str, str]]:
    """A cpufreq policy and the links of its CPUs to it, as the kernel lays them."""
    folder = f"{CPU}/cpufreq/{name}"
    files = {
        f"{folder}/scaling_cur_freq": f"{now}\n",
        f"{folder}/scaling_min_freq": f"{low}\n",
        f"{folder}/scaling_max_freq": f"{high}\n",
        f"{folder}/scaling_governor": f"{governor}\n",
    }
    return files, {f"{CPU}/cpu{cpu}/cpufreq": f"../cpufreq/{name}" for cpu in cpus}


def raspberry_pi_5(root: Path) -> str:
    files, links = policy("policy0", range(4), 2400000, 1500000, 2400000, "ondemand")
    core = "processor\t: {}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd asimdhp asimddp\nCPU implementer\t: 0x41\n"
    files |= {
        "proc/cpuinfo": "".join(core.format(i) + "CPU part\t: 0xd0b\n\n" for i in range(4)),
        "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
        "proc/loadavg": "0.52 0.10 0.10 1/99 7\n",
        "proc/meminfo": "MemTotal:        8123456 kB\nMemFree:          123456 kB\n",
        "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n",
        "proc/stat": "cpu  100 0 50 800 20 0 10 0 0 0\ncpu0 25 0 12 200 5 0 2 0 0 0\n",
        "proc/sys/kernel/randomize_va_space": "2\n",
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
        f"{CPU}/cpufreq/boost": "1\n",
        f"{CPU}/smt/active": "0\n",
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone0/temp": "51450\n",
        "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
        "sys/class/thermal/cooling_device0/cur_state": "2\n",
        "sys/class/thermal/cooling_device0/stats/total_trans": "41\n",
        "sys/class/hwmon/hwmon0/name": "cpu_thermal\n",
        "sys/class/hwmon/hwmon0/temp1_input": "51450\n",
        "sys/class/hwmon/hwmon1/name": "rpi_volt\n",
        "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0\n",
    }
    return tree(root, files, links)


FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"


def raspberry_pi_4(root: Path, flags: str = "0\n") -> str:
    """Its kernel shows the firmware's throttle flags, in hexadecimal without a prefix."""
    files, links = policy("policy0", range(4), 1500000, 600000, 1500000, "ondemand")
    files |= {"proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0", FIRMWARE: flags}
    return tree(root, files, links)


def jetson_orin_nano(root: Path) -> str:
    files, links = policy("policy0", range(4), 1510400, 729600, 1510400, "schedutil")
    more, more_links = policy("policy4", range(4, 6), 1344000, 729600, 1510400, "schedutil")
    hwmon = "sys/class/hwmon/hwmon1"
    files |= more
    files |= {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "var/lib/nvpmodel/status": "pmode:0002",
        "etc/nvpmodel.conf": "< PARAM TYPE=FILE NAME=CPU_ONLINE >\n< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n"
        "< POWER_MODEL ID=1 NAME=25W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\nCPU_ONLINE CORE_0 1\n",
        "sys/class/hwmon/hwmon0/name": "soctherm_oc\n",
        "sys/class/hwmon/hwmon0/oc1_event_cnt": "0\n",
        "sys/class/hwmon/hwmon0/oc2_event_cnt": "3\n",
        f"{hwmon}/name": "ina3221\n",
        f"{hwmon}/in1_label": "VDD_IN\n",
        f"{hwmon}/in1_input": "5072\n",
        f"{hwmon}/curr1_input": "1312\n",
        f"{hwmon}/in2_label": "VDD_CPU_GPU_CV\n",
        f"{hwmon}/in2_input": "5064\n",
        f"{hwmon}/curr2_input": "304\n",
        f"{hwmon}/in3_label": "VDD_SOC\n",
        f"{hwmon}/in3_input": "5064\n",
        f"{hwmon}/curr3_input": "248\n",
        f"{hwmon}/in4_input": "13\n",
        f"{hwmon}/in7_label": "sum of shunt voltages\n",
        f"{hwmon}/in7_input": "0\n",
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone0/temp": "47312\n",
        "sys/class/thermal/thermal_zone1/type": "cv0-thermal\n",
        "sys/class/thermal/thermal_zone1/temp": "-256000\n",
        "sys/class/thermal/thermal_zone2/type": "tj-thermal\n",
        "sys/class/thermal/thermal_zone2/temp": "48500\n",
        "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
        "sys/class/thermal/cooling_device0/cur_state": "3\n",
        "sys/class/thermal/cooling_device1/type": "cpufreq-cpu0\n",
        "sys/class/thermal/cooling_device1/cur_state": "0\n",
        "sys/class/thermal/cooling_device1/stats/total_trans": "8\n",
    }
    return tree(root, files, {**links, **more_links})


def laptop(root: Path) -> str:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for cpu in range(2):
        more, more_links = policy(f"policy{cpu}", range(cpu, cpu + 1), 2900000 + cpu, 400000, 4700000, "powersave")
        files |= more
        links |= more_links
        files[f"{CPU}/cpu{cpu}/thermal_throttle/core_throttle_count"] = f"{7 + cpu}\n"
        files[f"{CPU}/cpu{cpu}/thermal_throttle/package_throttle_count"] = "12\n"
    rapl = "sys/class/powercap"
    files |= {
        "proc/cpuinfo": "model name\t: 11th Gen Intel(R) Core(TM) i7-1165G7\nflags\t\t: sse4_2 avx avx2 fma\n",
        "proc/stat": "cpu  1000 10 500 8000 20 5 15 70 300 10\n",
        "proc/self/cgroup": "0::/user.slice\n",
        f"{CPU}/intel_pstate/no_turbo": "0\n",
        f"{CPU}/smt/active": "1\n",
        f"{CPU}/smt/control": "on\n",
        f"{rapl}/intel-rapl:0/name": "package-0\n",
        f"{rapl}/intel-rapl:0/energy_uj": "000000262143320000\n",
        f"{rapl}/intel-rapl:0/max_energy_range_uj": "262143328850\n",
        f"{rapl}/intel-rapl:0:0/name": "core\n",
        f"{rapl}/intel-rapl:0:0/energy_uj": "000000000000005000\n",
        f"{rapl}/intel-rapl:0:0/max_energy_range_uj": "262143328850\n",
        f"{rapl}/intel-rapl:1/name": "psys\n",
        f"{rapl}/intel-rapl:1/energy_uj": "000000000000007000\n",
        f"{rapl}/intel-rapl:1/max_energy_range_uj": "262143328850\n",
        f"{rapl}/intel-rapl-mmio:0/name": "package-0\n",
        f"{rapl}/intel-rapl-mmio:0/energy_uj": "000000000000009000\n",
        "sys/class/power_supply/AC/type": "Mains\n",
        "sys/class/power_supply/AC/online": "0\n",
        "sys/class/power_supply/BAT0/type": "Battery\n",
        "sys/class/power_supply/BAT0/status": "Discharging\n",
        "sys/class/power_supply/hidpp_battery_0/type": "Battery\n",
        "sys/class/power_supply/hidpp_battery_0/scope": "Device\n",
        "sys/class/power_supply/hidpp_battery_0/status": "Full\n",
        "sys/firmware/acpi/platform_profile": "balanced\n",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone0/temp": "63000\n",
        "sys/class/thermal/thermal_zone1/type": "acpitz\n",
        "sys/class/thermal/thermal_zone1/temp": "20000\n",
        "sys/class/thermal/thermal_zone2/type": "acpitz\n",
        "sys/class/thermal/thermal_zone2/temp": "21000\n",
        "sys/class/hwmon/hwmon0/name": "coretemp\n",
        "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
        "sys/class/hwmon/hwmon0/temp1_input": "63000\n",
    }
    return tree(root, files, links)


def container(root: Path) -> str:
    files = {
        ".dockerenv": "",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-1,4\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 7\nthrottled_usec 900\n",
    }
    return tree(root, files)
