"""Messages that a newcomer meets: each names the thing and says what to do next."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from edgeopt.pipeline import Request, build
from tests.conftest import ROOT
from tests.short_sets import NET, short_sets
from tests.unit.cli.conftest import Call

CHAIN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[n,4,h,k] y)
<int64[4] head = {0, 0, 1, 1}, int64[1] count = {4}>
{
    zeros = ConstantOfShape <value: tensor = int64[1] {0}> (count)
    both = Concat <axis = 0> (zeros, head)
    pads = Cast <to = 7> (both)
    padded = Pad (x, pads)
    y = Conv <kernel_shape = [3, 3]> (padded, w)
}"""
"""A Pad whose amounts hang on a chain of constants: the output's sizes are known only once it is folded."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the embedded network, not measured."""
    folder = tmp_path_factory.mktemp("built")
    calib, evaluate = short_sets(folder)
    return build(
        Request(model=NET, target="host", out=folder / "out", calib=calib, evaluate=evaluate, effort="none")
    ).root


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "out")


def test_build_without_a_target_says_where_they_are(call: Call) -> None:
    code, out, err = call("build", NET)
    assert (code, out) == (2, "")
    assert "Missing option --target" in err
    assert "edgeopt targets list" in err


def test_a_misspelt_option_names_the_nearest_one(call: Call) -> None:
    code, _, err = call("build", NET, "--taget", "host")
    assert (code, err.splitlines()[0]) == (2, 'error: No such option "--taget". Did you mean "--target"?')
    assert call("doctor", "--xyzzyx")[2].startswith('error: No such option "--xyzzyx".\n')


@pytest.mark.parametrize("limit", ["memory=1GB", "p95=1s", "size=1MB,p99=1s"])
def test_a_limit_that_will_not_be_measured_is_refused_before_any_work(call: Call, limit: str, tmp_path: Path) -> None:
    code, out, err = call("build", NET, "-t", "host", "-o", tmp_path / "o", "--effort", "none", "--budget", limit)
    assert (code, out) == (2, "")
    assert f"--budget {'memory' if 'memory' in limit else limit[-6:-3]} needs a measurement" in err
    assert "load" not in err


def test_a_model_that_may_not_be_read_is_no_usage_error(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *a, **k: False)  # what Click asks; root may read anything
    assert call("inspect", NET)[0] == 0


def test_a_folder_of_something_else_is_kept_and_the_reason_said_once(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    code, _, err = call("build", NET, "-t", "host", "-o", tmp_path)
    assert code == 9
    assert err.count(str(tmp_path)) == 1
    assert "it has no manifest.json" in err


def test_inspect_knows_sizes_behind_a_chain_of_constants(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    path.write_bytes(parser.parse_model(CHAIN).SerializeToString())
    code, out, err = call("inspect", path)
    assert (code, err) == (0, "")
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert rows["output"].strip() == "y: float32[1, 4, 7, 7]"
    assert rows["dynamic dims"].strip() == "none"
    assert rows["multiply-accumulates"].strip() == f"{4 * 7 * 7 * 27 / 1000:.1f} k"
    assert "unknown" not in out
    assert json.loads(call("inspect", path, "--json")[1])["dynamic_dims"] == []


def test_inspect_lists_the_keys_that_exclude_takes(call: Call, bundle: Path) -> None:
    code, out, _ = call("inspect", NET, "--nodes")
    lines = out.splitlines()
    assert (code, lines[0].split()) == (0, ["key", "operator", "output", "MACs"])
    assert any(line.split()[:2] == ["node_conv2d", "Conv"] and line.endswith("56.4 k") for line in lines)
    listed = json.loads(call("inspect", NET, "--nodes", "--json")[1])["node_list"]
    conv = next(node for node in listed if node["key"] == "node_conv2d")
    assert (conv["op"], conv["macs"], len(conv["outputs"])) == ("Conv", 8 * 28 * 28 * 9, 1)
    assert "node_list" not in json.loads(call("inspect", NET, "--json")[1])
    rows = call("inspect", bundle, "--nodes")[1].splitlines()
    assert rows[0].split() == ["key", "operator", "runs", "why"]
    assert any(row.split()[:3] == ["node_conv2d", "Conv", "int8"] for row in rows)


def test_inspect_warns_of_a_damaged_bundle(call: Call, bundle: Path) -> None:
    assert call("inspect", bundle)[2] == ""
    path = bundle / "model" / "fashion-mnist.int8.onnx"
    damaged = bytearray(path.read_bytes())
    damaged[5000] ^= 1
    path.write_bytes(damaged)
    code, out, err = call("inspect", bundle)
    assert code == 0
    assert "fashion-mnist.int8.onnx" in out
    assert err.startswith("warning: model/fashion-mnist.int8.onnx is damaged")
    for command in ("verify", "bench"):
        code, _, err = call(command, bundle)
        assert code == 9
        assert err.endswith("Copy the whole folder again, or build it again.\n")
        assert err.count(str(bundle)) == 1


def test_a_stranger_in_a_bundle_is_to_be_moved(call: Call, bundle: Path) -> None:
    (bundle / "notes.txt").write_text("mine")
    code, _, err = call("verify", bundle)
    assert code == 9
    assert "notes.txt" in err
    assert err.endswith("Move it out of the folder.\n")


@pytest.mark.parametrize("command", ["inspect", "bench", "verify"])
def test_a_folder_that_is_no_bundle(call: Call, command: str, tmp_path: Path) -> None:
    code, out, err = call(command, tmp_path)
    assert (code, out) == (9, "")
    error = next(line for line in err.splitlines() if line.startswith("error: "))
    assert "manifest.json" in error
    assert error.count(str(tmp_path)) == 1
    assert "Name " in err.splitlines()[-1]


def test_a_lock_that_is_not_there_is_named_with_its_path(call: Call, tmp_path: Path) -> None:
    code, _, err = call("build", NET, "-t", "host", "--locked", tmp_path, "-o", tmp_path / "o")
    assert code == 9
    assert f"{tmp_path / 'decisions.lock'} does not exist" in err


def test_a_measurement_that_the_disk_has_no_room_for(
    call: Call, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, out, err = call("bench", bundle, "--seconds", "0.2", "-q", "-o", tmp_path / "m.json")
    assert (code, out) == (8, "")
    assert f"{tmp_path / 'm.json'} cannot be written: No space left on device" in err


def test_a_profile_with_several_problems_lists_them(call: Call, tmp_path: Path) -> None:
    text = (ROOT / "targets" / "raspberry-pi-5.toml").read_text()
    path = tmp_path / "board.toml"
    path.write_text(text.replace("threads =", "thread =").replace("opset_max =", "opset_max_ ="))
    code, _, err = call("targets", "check", path)
    lines = err.splitlines()
    assert code == 4
    assert lines[0] == f"error: {path}: {len(lines) - 2} problems:"
    assert len(lines) >= 4
    assert all(line.startswith("  ") for line in lines[1:-1])


def test_the_notes_of_a_profile_stand_one_a_line(call: Call) -> None:
    notes = [
        line.split("  ", 1)[1].strip()
        for line in call("targets", "show", "rpi5")[1].splitlines()
        if line[:5] == "note "
    ]
    assert len(notes) == 2
    assert all(note.endswith(".") for note in notes)


def test_one_data_set_for_both_is_warned_of(call: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    np.save(tmp_path / "x.npy", rng.standard_normal((12, 1, 28, 28)).astype(np.float32))
    data = tmp_path / "x.npy"
    code, _, err = call(
        *("build", NET, "-t", "host", "-o", tmp_path / "o", "--effort", "none", "-q"), "--calib", data, "--eval", data
    )
    assert code == 0
    assert "12 of the first 12 samples of x are in it too" in err
