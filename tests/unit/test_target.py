"""Device profiles: what is shipped, what is refused, where they are found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edgeopt.errors import TargetError
from edgeopt.host import ARCHES
from edgeopt.target import (
    BACKENDS,
    FACTS,
    Int8Scheme,
    check_target,
    list_targets,
    load_target,
    parse,
    share_dir,
    target_dict,
    wheel,
)
from runtime_bench.profile import SUPPORT

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = tuple(sorted(path.stem for path in (ROOT / "targets").glob("[!_]*.toml")))

VALID = """
schema = "edgeopt.target/1"
name = "board"
description = "a board"
backends = ["onnxruntime"]
arch = "aarch64"
isa = ["asimddp"]
threads = 4
opset_max = 20
ir_version_max = 9

[int8]
activation = "int8"

[runtime]
onnxruntime = "1.17.0"

[facts]
memory_bytes = { value = 1024, source = "datasheet", verified = true }
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "board.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_valid_and_named_like_its_file(name: str) -> None:
    path = ROOT / "targets" / f"{name}.toml"
    assert check_target(path) == []
    found = load_target(name)
    assert found.name == path.stem == name
    assert found == load_target(str(path))
    assert all(fact.source for fact in found.facts.values())
    assert found.runtime["onnxruntime"] in ("1.17.0", "1.18.0")


def test_no_other_profile_is_shipped_and_the_list_has_them_all() -> None:
    assert sorted(p.name for p in (ROOT / "targets").glob("*")) == sorted(
        ["_wheels.toml", *(f"{name}.toml" for name in SHIPPED)]
    )
    assert len(SHIPPED) >= 30
    infos = list_targets()
    assert [info.name for info in infos] == sorted([*SHIPPED, "host"])
    names = [name for info in infos for name in (info.name, *info.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "arch", "scheme", "backends"),
    [
        ("raspberry-pi-5", "aarch64", Int8Scheme(activation="int8"), ("onnxruntime",)),
        ("jetson-orin-nano", "aarch64", Int8Scheme(activation="int8"), ("tensorrt", "onnxruntime")),
        ("x86-avx512-vnni", "x86_64", Int8Scheme(activation="uint8"), ("onnxruntime",)),
        ("x86-avx2", "x86_64", Int8Scheme(activation="uint8", weight_bits=7), ("onnxruntime",)),
    ],
)
def test_int8_follows_the_instruction_set(name: str, arch: str, scheme: Int8Scheme, backends: tuple[str, ...]) -> None:
    found = load_target(name)
    assert (found.arch, found.int8, found.backends) == (arch, scheme, backends)


def test_Q06_seven_bits_cannot_saturate_a_pair_and_eight_can() -> None:
    bits = load_target("x86-avx2").int8.weight_bits
    assert 2 * 255 * 2 ** (bits - 1) <= 32_767 < 2 * 255 * 2**7


def test_jetson_is_an_alias_and_states_its_last_wheel() -> None:
    found = load_target("jetson")
    assert found.name == "jetson-orin-nano"
    assert found.facts["python"].value == "3.10"
    assert wheel(found, "onnxruntime") == "1.23.2"
    assert not found.facts["clock_hz"].verified


@pytest.mark.parametrize("name", [*SHIPPED, "host"])
def test_a_target_becomes_plain_json(name: str) -> None:
    found = load_target(name)
    raw = target_dict(found)
    assert json.loads(json.dumps(raw, allow_nan=False)) == raw
    assert raw["name"] == name
    assert raw["backends"] == list(found.backends)
    assert raw["facts"] == {
        name: {"value": fact.value, "source": fact.source, "verified": fact.verified}
        for name, fact in found.facts.items()
    }


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(TargetError) as caught:
        load_target("raspbery-pi5")
    assert caught.value.exit_code == 4
    assert str(caught.value).startswith('unknown target "raspbery-pi5". Did you mean "raspberry-pi-5"?')
    assert "targets list" in str(caught.value.remedy)


@pytest.mark.parametrize("spelling", ["./board.toml", "board.toml", "sub folder/bärd.toml"])
def test_a_path_is_taken_as_a_path(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(spelling)
    path.parent.mkdir(exist_ok=True)
    path.write_text(VALID, encoding="utf-8")
    assert load_target(spelling).name == "board"


def test_a_file_in_the_working_folder_does_not_shadow_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jetson").write_text(VALID)
    assert load_target("jetson").name == "jetson-orin-nano"


REFUSED = [
    ('name = "board"', 'nam = "board"', 'nam: unknown key. Did you mean "name"?'),
    ('name = "board"', "", "name: is missing; it must be a text."),
    ('name = "board"', 'name = "host"', 'name: "host" cannot name a target'),
    ('name = "board"', 'name = "Bo/ard"', 'name: "Bo/ard" cannot name a target'),
    ('"edgeopt.target/1"', '"edgeopt.target/2"', 'schema: unknown value "edgeopt.target/2"; known: edgeopt.target/1.'),
    ('["onnxruntime"]', '["onnxruntim"]', 'backends: unknown value "onnxruntim". Did you mean "onnxruntime"?'),
    ('["onnxruntime"]', "[]", "backends: must not be empty."),
    ('["onnxruntime"]', '["onnxruntime", "onnxruntime"]', "backends: holds a value twice."),
    ('["onnxruntime"]', '"onnxruntime"', "backends: must be a list of texts, got 'onnxruntime'."),
    ('"aarch64"', '"arm64"', 'arch: unknown value "arm64"; known: aarch64, armv7l, x86_64. Did you mean "aarch64"?'),
    ('["asimddp"]', '["asimdddp"]', 'isa: unknown value "asimdddp". Did you mean "asimddp"?'),
    ('["asimddp"]', '["avx2"]', 'isa: unknown value "avx2".'),
    ("threads = 4", 'threads = "4"', "threads: must be an integer, got '4'."),
    ("threads = 4", "threads = true", "threads: must be an integer, got True."),
    ("threads = 4", "threads = 0", "threads: must be 1 or more, 1024 at most, got 0."),
    ("opset_max = 20", "opset_max = 21", "opset_max: onnxruntime 1.17.0 loads opset 20 at most, got 21."),
    ("ir_version_max = 9", "ir_version_max = 10", "ir_version_max: onnxruntime 1.17.0 loads IR 9 at most, got 10."),
    ('onnxruntime = "1.17.0"', "", "runtime.onnxruntime: is missing; state the oldest version on the device."),
    ('onnxruntime = "1.17.0"', 'onnxruntime = "new"', 'runtime.onnxruntime: "new" is not a version like "1.17.0".'),
    ('onnxruntime = "1.17.0"', 'onnxruntime = "1.17.0"\nopenvino = "1"', "runtime.openvino: the profile does not list"),
    ('activation = "int8"', 'activation = "int4"', 'int8.activation: unknown value "int4"; known: int8, uint8.'),
    ('activation = "int8"', 'activation = "int8"\nbits = 8', "int8.bits: unknown key."),
    ('activation = "int8"', 'activation = "int8"\nweight_bits = 4', "int8.weight_bits: must be 7 or more, 8 at most"),
    ("memory_bytes =", "memory_byte =", 'facts.memory_byte: unknown key. Did you mean "memory_bytes"?'),
    ("value = 1024", "value = nan", "facts.memory_bytes.value: must be a finite number or a text."),
    ('source = "datasheet"', 'source = ""', "facts.memory_bytes.source: must not be empty."),
    (", verified = true", "", "facts.memory_bytes.verified: is missing; it must be true or false."),
    (", verified = true", ', verified = "yes"', "facts.memory_bytes.verified: must be true or false, got 'yes'."),
]


@pytest.mark.parametrize(("old", "new", "words"), REFUSED)
def test_a_bad_profile_is_refused_with_file_and_key(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in VALID
    path = write(tmp_path, VALID.replace(old, new))
    assert any(problem.startswith(words) for problem in check_target(path)), check_target(path)
    with pytest.raises(TargetError) as caught:
        load_target(str(path))
    assert caught.value.exit_code == 4
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "docs/add-a-target.md" in str(caught.value.remedy)


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, VALID.replace("threads = 4", "threads = 0").replace('"aarch64"', '"arm64"'))
    with pytest.raises(TargetError, match=r"2 problems:\n  arch: .*\n  threads: "):
        load_target(str(path))


@pytest.mark.parametrize("isa", ['["avx2"]', '["avx2", "avx512f"]', "[]"])
def test_Q06_uint8_with_8_bit_weights_is_refused_on_x86_without_vnni(isa: str, tmp_path: Path) -> None:
    x86 = VALID.replace('"aarch64"', '"x86_64"').replace('"int8"', '"uint8"').replace('["asimddp"]', isa)
    assert any("pairs of products saturate" in problem for problem in check_target(write(tmp_path, x86)))
    seven = x86.replace('activation = "uint8"', 'activation = "uint8"\nweight_bits = 7')
    assert check_target(write(tmp_path, seven)) == []
    vnni = x86.replace(isa, '["avx2", "avx_vnni"]')
    assert check_target(write(tmp_path, vnni)) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = \xff", "not UTF-8 text."),
        (b"a = ", "not valid TOML"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"# " + b"x" * (1 << 20), "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_toml_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=re.escape(words)) as caught:
        load_target(str(path))
    assert str(path) in caught.value.message


@pytest.mark.parametrize("name", ["missing.toml", "folder.toml", "nul\0.toml"])
def test_a_path_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(TargetError, match=r"cannot be read|is not a file"):
        load_target(f"{tmp_path}/{name}")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.encode())
    assert load_target(str(path)).name == "board"


def test_profiles_are_found_in_the_checkout() -> None:
    assert share_dir("targets") == ROOT / "targets"
    assert share_dir("calibration") == ROOT / "calibration"


def test_profiles_are_found_in_an_installed_package(tmp_path: Path) -> None:
    """The layout of the wheel: data below edgeopt/_share, nothing beside the package."""
    shutil.copytree(ROOT / "edgeopt", tmp_path / "edgeopt", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "targets", tmp_path / "edgeopt/_share/targets")
    shutil.copytree(ROOT / "runtime_bench", tmp_path / "runtime_bench", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "targets").mkdir()  # of some other distribution
    code = "from edgeopt.target import load_target, share_dir; print(load_target('jetson').name, share_dir('targets'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["jetson-orin-nano", str(tmp_path / "edgeopt/_share/targets")]


def test_the_wheel_carries_the_data() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = built["force-include"]
    assert included == {"targets": "edgeopt/_share/targets", "calibration": "edgeopt/_share/calibration"}


def test_the_page_on_targets_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs/add-a-target.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        assert check_target(write(tmp_path, example)) == []
    for name, meaning in FACTS.items():
        assert f"| `{name}` | {meaning} |" in page
    for key in (*parse._KEYS, "extends", *BACKENDS, *ARCHES):
        assert f"`{key}" in page or f"`{key}`" in page, key
    for _, minor, opset, ir_version in SUPPORT:
        assert re.search(rf"\| [^|]*1\.{minor}[^|]*\| {opset} \| {ir_version} \|", page)
