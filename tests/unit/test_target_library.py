"""Profiles that extend one another, folders of one's own, wheels, and the profile that a device writes of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeopt.cli import group
from edgeopt.errors import TargetError
from edgeopt.target import check_target, list_targets, load_target, target_dict, wheel
from edgeopt.target.wheels import last_wheel
from runtime_bench.cli import main as bench
from runtime_bench.profile import profile, slug

CHILD = """
schema = "edgeopt.target/1"
name = "{name}"
description = "a board of ours"
extends = "{base}"
"""


def put(folder: Path, name: str, base: str, more: str = "") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(CHILD.format(name=name, base=base) + more, encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("EDGEOPT_TARGETS", str(folder))
    return folder


def test_a_profile_takes_from_another_what_it_does_not_state(tmp_path: Path) -> None:
    more = 'threads = 2\n[facts]\nmemory_bytes = { value = 2048, source = "our board", verified = true }\n'
    found, base = load_target(str(put(tmp_path, "ours", "raspberry-pi-5", more))), load_target("raspberry-pi-5")
    assert (found.name, found.aliases, found.threads) == ("ours", (), 2)
    assert found.facts["memory_bytes"].value == 2048
    assert found.facts["cpu"] == base.facts["cpu"]
    assert (found.isa, found.int8, found.runtime, found.notes) == (base.isa, base.int8, base.runtime, base.notes)


def test_a_chain_is_followed_and_a_circle_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a", "./b.toml", "threads = 1\n")
    put(tmp_path, "b", "./c.toml", "threads = 2\n")
    put(tmp_path, "c", "rpi5", "opset_max = 17\n")
    found = load_target(str(tmp_path / "a.toml"))
    assert (found.threads, found.opset_max) == (1, 17)
    put(tmp_path, "c", "./a.toml")
    with pytest.raises(TargetError, match=r"leads back to"):
        load_target(str(tmp_path / "a.toml"))


def test_an_endless_chain_is_refused(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path, f"n{number}", f"./n{number + 1}.toml")
    assert any("more than 8 profiles" in problem for problem in check_target(tmp_path / "n0.toml"))


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("raspbery-pi-5", 'unknown target "raspbery-pi-5". Did you mean "raspberry-pi-5"'),
        ("../secret.toml", "leads out of the profile's folder"),
        ("/etc/other.toml", "leads out of the profile's folder"),
        ("hots", 'unknown target "hots". Did you mean "host"'),
    ],
)
def test_what_cannot_be_extended_is_named(base: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(str(put(tmp_path, "ours", base)))
    assert said in caught.value.message
    assert caught.value.message.count("extends: ") == 1
    assert "problems" not in caught.value.message


def test_a_missing_base_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"gone\.toml: cannot be read"):
        load_target(str(put(tmp_path, "ours", "./gone.toml")))


def test_a_problem_of_the_merged_profile_is_found(tmp_path: Path) -> None:
    """7-bit weights come from the base: 8 bits without VNNI would saturate."""
    path = put(tmp_path, "ours", "x86-avx2", "[int8]\nweight_bits = 8\n")
    assert any(problem.startswith("int8.weight_bits: must be 7") for problem in check_target(path))


def test_a_folder_of_ones_own_comes_first(own: Path) -> None:
    path = put(own, "raspberry-pi-5", "./base.toml", "threads = 3\n")
    (own / "base.toml").write_text(Path("targets/raspberry-pi-4.toml").read_text())
    assert load_target("raspberry-pi-5").threads == 3
    assert load_target("rpi4").facts["cpu"].value == "Cortex-A72"
    assert load_target("rpi5").facts["cpu"].value == "Cortex-A76"  # the alias of the shipped one still means it
    infos = [info for info in list_targets() if info.name == "raspberry-pi-5"]
    assert [info.path for info in infos] == [path]


def test_a_broken_profile_blocks_only_itself(own: Path) -> None:
    (own / "bad.toml").write_text("name = ")
    put(own, "good", "rpi5")
    assert load_target("good").arch == "aarch64"
    listed = {info.name: info.description for info in list_targets()}
    assert listed["bad"].startswith("cannot be used: ")
    with pytest.raises(TargetError, match="not valid TOML"):
        load_target("bad")


def test_a_profile_extends_the_one_that_it_hides(own: Path) -> None:
    put(own, "raspberry-pi-5", "raspberry-pi-5", "threads = 1\n")
    found = load_target("raspberry-pi-5")
    assert (found.threads, found.facts["cpu"].value) == (1, "Cortex-A76")


def test_two_profiles_of_one_name_are_refused(own: Path) -> None:
    put(own, "ours", "rpi5")
    put(own, "ours2", "rpi5").write_text((own / "ours.toml").read_text())
    with pytest.raises(TargetError, match='two profiles are called "ours"'):
        load_target("ours")


def test_several_folders_and_a_missing_one(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "second"
    second.mkdir()
    put(own, "ours", "rpi5", "threads = 1\n")
    put(second, "ours", "rpi5", "threads = 2\n")
    monkeypatch.setenv("EDGEOPT_TARGETS", os.pathsep.join((str(second), str(own))))
    assert load_target("ours").threads == 2
    monkeypatch.setenv("EDGEOPT_TARGETS", str(tmp_path / "gone"))
    for ask in (list_targets, lambda: load_target("raspberry-pi-5")):
        with pytest.raises(TargetError, match="EDGEOPT_TARGETS: .*gone is no folder"):
            ask()


def test_last_wheels() -> None:
    assert last_wheel("onnxruntime", "aarch64", "3.8") == "1.19.2"
    assert last_wheel("onnxruntime", "aarch64", "3.10") == "1.23.2"
    assert last_wheel("onnxruntime", "armv7l", "3.11") is None
    assert wheel(load_target("raspberry-pi-5"), "onnxruntime") is None  # the profile states no Python
    assert wheel(load_target("jetson-xavier-nx"), "onnxruntime") == "1.19.2"


def test_a_runtime_newer_than_the_last_wheel_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "ours", "jetson-xavier-nx", '[runtime]\nonnxruntime = "1.20.0"\n')
    assert check_target(path) == ["runtime.onnxruntime: 1.20.0 is newer than the last wheel for Python 3.8, 1.19.2."]


def board(tmp_path: Path, features: str, model: str = "Our Board rev 1.0") -> Path:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc/device-tree/model").write_text(model + "\0")
    (tmp_path / "proc/cpuinfo").write_text(
        f"processor\t: 0\nFeatures\t: {features}\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"
    )
    (tmp_path / "proc/meminfo").write_text("MemTotal:        2000000 kB\n")
    (tmp_path / "etc/os-release").write_text('PRETTY_NAME="Board OS \\"12\\""\n')
    return tmp_path


def test_a_device_describes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    text = profile(str(board(tmp_path / "root", "fp asimd evtstrm fphp asimdhp asimddp")), {"onnxruntime": "1.19.2"})
    path = tmp_path / "probed.toml"
    path.write_text(text)
    assert check_target(path) == []
    found = load_target(str(path))
    assert (found.name, found.arch, found.isa) == (
        "our-board-rev-1-0",
        "aarch64",
        ("asimd", "fphp", "asimdhp", "asimddp"),
    )
    assert (found.opset_max, found.ir_version_max, found.runtime) == (21, 10, {"onnxruntime": "1.19.2"})
    assert found.int8.activation == "int8"
    assert found.facts["memory_bytes"].value == 2_000_000 * 1024
    assert found.facts["cpu"].value == "Cortex-A76"
    assert all(fact.verified and fact.source == "probed on the device" for fact in found.facts.values())
    assert target_dict(found)["notes"] == []


def test_a_device_without_runtime_and_dot_product_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    text = profile(str(board(tmp_path / "root", "fp asimd")), {})
    assert 'onnxruntime = "1.17.0" # not installed here' in text
    assert "No 8-bit dot product" in text


def test_x86_without_vnni_gets_seven_bit_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    root = board(tmp_path / "root", "", model="PC")
    (root / "proc/cpuinfo").write_text("processor: 0\nmodel name: Some CPU\nflags: sse4_2 avx avx2 fma\n")
    path = tmp_path / "probed.toml"
    path.write_text(profile(str(root), {"onnxruntime": "1.32.0"}))
    assert check_target(path) == []
    assert load_target(str(path)).int8.weight_bits == 7


def test_names_of_boards_become_names_of_profiles() -> None:
    assert slug("NVIDIA Jetson Orin Nano (8GB)\n") == "nvidia-jetson-orin-nano-8gb"
    assert slug("host") == slug("~~") == "board"
    assert len(slug("x" * 200)) == 64


def test_the_bench_program_prints_the_same_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench(["probe"]) == 0
    printed = capsys.readouterr().out
    assert printed == profile()
    (tmp_path / "here.toml").write_text(printed)
    assert check_target(tmp_path / "here.toml") == []
    with pytest.raises(SystemExit) as stopped:
        bench(["probe", "--threads", "2"])
    assert stopped.value.code == 2


def test_probe_writes_a_file_once(tmp_path: Path) -> None:
    out = tmp_path / "here.toml"
    first = CliRunner().invoke(group, ["targets", "probe", "-o", str(out), "--name", "here"])
    assert (first.exit_code, first.stdout.strip()) == (0, str(out))
    assert load_target(str(out)).name == "here"
    again = CliRunner().invoke(group, ["targets", "probe", "-o", str(out)])
    assert isinstance(again.exception, TargetError)
    assert CliRunner().invoke(group, ["targets", "probe", "--name", "My Board"]).exit_code == 2
