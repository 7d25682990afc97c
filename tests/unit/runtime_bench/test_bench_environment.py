"""The description of machines and what changed on them, from fixture trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime_bench.machine import environment
from tests.unit.runtime_bench import machines
from tests.unit.runtime_bench.machines import tree


def test_describe_a_raspberry_pi(tmp_path: Path) -> None:
    found = environment.describe(machines.raspberry_pi_5(tmp_path))
    assert found["board"] == "Raspberry Pi 5 Model B Rev 1.0"
    assert found["cpu"] == "Cortex-A76"
    assert found["flags"] == ["asimd", "asimdhp", "asimddp"]
    assert found["governor"] == "ondemand"
    assert found["frequency_khz"]["cpu3"] == {"now": 2400000, "min": 1500000, "max": 2400000}
    assert list(found["frequency_khz"]) == ["cpu0", "cpu1", "cpu2", "cpu3"]
    assert found["temperature_mc"] == {"cpu-thermal": 51450}
    assert (found["boost"], found["smt"], found["aslr"]) == (True, False, 2)
    assert found["load1"] == 0.52
    assert found["memory_bytes"] == 8123456 * 1024
    assert set(found["missing"]) == {"quota_cpus", "cpuset", "power_source", "power_mode", "container"}


def test_describe_cores_of_two_kinds(tmp_path: Path) -> None:
    core = "processor\t: {}\nFeatures\t: fp asimd {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"
    cpuinfo = core.format(0, "asimddp asimdhp", "0xd0b") + core.format(1, "asimdhp", "0xd05")
    found = environment.describe(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert found["cpu"] == "Cortex-A55 + Cortex-A76"
    assert found["flags"] == ["asimd", "asimdhp"]  # what every core has


def test_describe_a_jetson(tmp_path: Path) -> None:
    found = environment.describe(machines.jetson_orin_nano(tmp_path))
    assert found["power_mode"] == "nvpmodel 2 (MAXN_SUPER)"
    assert found["temperature_mc"] == {"cpu-thermal": 47312, "tj-thermal": 48500}  # the vision engine is off
    assert found["frequency_khz"]["cpu5"]["now"] == 1344000
    (tmp_path / "etc/nvpmodel.conf").unlink()
    assert environment.describe(str(tmp_path))["power_mode"] == "nvpmodel 2"


def test_describe_a_laptop(tmp_path: Path) -> None:
    found = environment.describe(machines.laptop(tmp_path))
    assert (found["boost"], found["smt"]) == (True, True)
    assert found["power_source"] == "battery"
    assert found["power_mode"] == "balanced"
    assert found["temperature_mc"] == {
        "x86_pkg_temp": 63000,
        "acpitz": 20000,
        "acpitz thermal_zone2": 21000,
        "coretemp Package id 0": 63000,
    }
    (tmp_path / "sys/class/power_supply/AC/online").write_text("1\n")
    (tmp_path / machines.CPU / "intel_pstate/no_turbo").write_text("1\n")
    found = environment.describe(str(tmp_path))
    assert (found["power_source"], found["boost"]) == ("mains", False)


def test_the_battery_of_a_mouse_feeds_no_computer(tmp_path: Path) -> None:
    mouse = "sys/class/power_supply/hidpp_battery_0"
    files = {f"{mouse}/type": "Battery\n", f"{mouse}/scope": "Device\n", f"{mouse}/status": "Discharging\n"}
    assert environment.describe(tree(tmp_path, files))["power_source"] is None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": 'engine="podman-4.9.3"\n'}, "podman"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope\n"}, "kubernetes"),
        ({"proc/self/cgroup": "3:cpu:/docker/0123abc\n"}, "docker"),
        ({"proc/self/cgroup": "0::/lxc.payload.box/init.scope\n"}, "lxc"),
        ({"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n"}, None),
        ({"proc/self/cgroup": "0::/system.slice/docker.service\n"}, None),
        ({}, None),
    ],
)
def test_describe_containers(tmp_path: Path, files: dict[str, str], name: str | None) -> None:
    assert environment.describe(tree(tmp_path, files))["container"] == name


def test_describe_limits_of_a_container(tmp_path: Path) -> None:
    found = environment.describe(machines.container(tmp_path))
    assert (found["container"], found["quota_cpus"], found["cpuset"]) == ("docker", 1.5, [0, 1, 4])


def test_what_is_not_there_is_null_with_a_reason(tmp_path: Path) -> None:
    found = environment.describe(str(tmp_path))
    told = {"machine", "cpus", "cpus_allowed", "cpus_online", "thread_variables", "kernel", "python", "missing"}
    assert {key for key, value in found.items() if value is None} == set(found) - told == set(found["missing"])
    assert all(found["missing"].values())


def test_files_without_sense_are_not_there(tmp_path: Path) -> None:
    machines.laptop(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\xff\xfe nonsense -1 \n")
    found = environment.describe(str(tmp_path))
    assert found["frequency_khz"] is None
    assert found["temperature_mc"] is None
    assert found["boost"] is None
    assert found["load1"] is None
    assert environment.finish(environment.begin(str(tmp_path)))["steal_share"] is None


def test_describe_this_machine_is_json() -> None:
    found = json.loads(json.dumps(environment.describe()))
    assert found["cpus"] == len(found["cpus_allowed"]) >= 1
    assert {key for key, value in found.items() if value is None} == set(found["missing"])


def test_changes_over_a_measurement(tmp_path: Path) -> None:
    root = machines.laptop(tmp_path)
    machines.container(tmp_path)
    tree(tmp_path, {"proc/pressure/cpu": "some avg10=0.00 total=1000\nfull avg10=0.00 total=900\n"})
    before = environment.begin(root)
    tree(
        tmp_path,
        {
            "sys/fs/cgroup/cpu.stat": "nr_throttled 12\nthrottled_usec 9000\n",
            "proc/pressure/cpu": "some avg10=9.00 total=501000\nfull avg10=0.00 total=2000\n",
            # 60 user, 5 nice, 20 system, 1000 idle, 10 waiting, 2 + 3 interrupts, 10 stolen, 40 of the user's a guest's
            "proc/stat": "cpu  1060 15 520 9000 30 7 18 80 340 10\n",
            "proc/loadavg": "1.25 0.1 0.1 1/99 7\n",
            f"{machines.CPU}/cpu0/thermal_throttle/core_throttle_count": "9\n",
            f"{machines.CPU}/cpu0/thermal_throttle/package_throttle_count": "13\n",
            f"{machines.CPU}/cpu1/thermal_throttle/package_throttle_count": "13\n",
        },
    )
    found = environment.finish(before)
    assert found["throttled_periods"] == 5
    assert found["pressure_cpu_some_us"] == 500000
    assert found["steal_share"] == pytest.approx(10 / 100)
    assert found["thermal_throttles"] == 3  # two of a core, one of the package, which both CPUs show
    assert found["load1_after"] == 1.25
    assert found["missing"] == {}


def test_changes_that_cannot_be_read(tmp_path: Path) -> None:
    found = environment.finish(environment.begin(str(tmp_path)))
    keys = {"throttled_periods", "thermal_throttles", "pressure_cpu_some_us", "steal_share", "load1_after"}
    assert {key for key in keys if found[key] is None} == keys == set(found["missing"])


def test_changes_on_this_machine_are_json() -> None:
    found = environment.finish(environment.begin())
    assert json.loads(json.dumps(found)) == found
    assert found["steal_share"] is None or 0 <= found["steal_share"] <= 1


def test_merge_unites_what_is_missing() -> None:
    merged = environment.merge({"a": None, "missing": {"a": "x"}}, {"b": 1, "missing": {}}, {"missing": {"c": "y"}})
    assert merged == {"a": None, "b": 1, "missing": {"a": "x", "c": "y"}}
