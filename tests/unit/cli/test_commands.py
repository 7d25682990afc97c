"""inspect, verify, bench, targets and doctor, in this process and through pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.cli import doctor
from edgeopt.pipeline import Request, build
from tests.conftest import ROOT, Run, clean_environment
from tests.short_sets import NET, short_sets
from tests.unit.cli.conftest import Call, seal
from tests.unit.runtime_bench.conftest import Bundle

BUILD = [sys.executable, "-m", "edgeopt", "build", str(NET), "--target", "host"]


def test_inspect_a_model(call: Call, model: Path) -> None:
    code, out, err = call("inspect", model)
    assert (code, err) == (0, "")
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert rows["input"].strip() == "x: float32[1, 8]"
    assert rows["parameters"].strip() == "40"
    assert rows["weights"].strip() == "160 B"
    assert rows["multiply-accumulates"].strip() == "40"
    assert rows["operators"].strip() == "MatMul 1, Relu 1"


def test_inspect_as_json_is_pure(edgeopt: Run, model: Path) -> None:
    done = edgeopt("inspect", model, "--json", env={"LC_ALL": "C"})
    assert (done.returncode, done.stderr) == (0, b"")
    seen = json.loads(done.stdout)
    assert (seen["kind"], seen["file"]) == ("model", "模型 v1 (final).onnx")
    assert (seen["parameters"], seen["weight_bytes"], seen["macs"]) == (40, 160, 40)
    assert seen["peak_activation_bytes"] == 8 * 4 + 5 * 4  # x is held by the caller; Relu works in place


def test_a_path_with_a_leading_dash(edgeopt: Run, model: Path, tmp_path: Path) -> None:
    shutil.copy(model, tmp_path / "-m.onnx")
    assert edgeopt("inspect", "--", "-m.onnx").returncode == 0


def test_a_path_that_is_not_utf8(edgeopt: Run, model: Path, tmp_path: Path) -> None:
    name = b"caf\xe9.onnx"
    shutil.copy(model, os.path.join(os.fsencode(tmp_path), name))  # noqa: PTH118
    done = edgeopt("inspect", name)
    assert done.returncode == 0
    assert edgeopt("inspect", b"missing-" + name).returncode == 3


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_a_missing_model_is_exit_3_with_one_line(call: Call, command: str, tmp_path: Path) -> None:
    code, out, err = call(command, tmp_path / "no such.onnx")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert "no such.onnx" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["x", "x=", "=1x8", "x=1xa", "x=0x8"])
def test_a_malformed_shape_is_wrong_usage(call: Call, model: Path, text: str) -> None:
    code, out, err = call("inspect", model, "--shape", text)
    assert code == 3 if text == "x=" else code == 2  # a scalar is a shape, but not one of this model
    assert out == ""
    assert err.startswith("error: ")


def test_a_shape_given_twice_is_wrong_usage(call: Call, model: Path) -> None:
    code, _, err = call("inspect", model, "--shape", "x=1x8", "--shape", "x=2x8")
    assert code == 2
    assert 'more than one shape for "x"' in err


def test_inspect_a_bundle(call: Call, bundle: Bundle) -> None:
    code, out, err = call("inspect", bundle.root)
    assert (code, err) == (0, "")
    assert "int8: 3.7x smaller" in out
    assert "onnxruntime instead of tensorrt: not built by this version" in out
    assert "model/m.int8.onnx (default, int8, " in out
    assert json.loads(call("inspect", bundle.root, "--json")[1])["kind"] == "bundle"


@pytest.mark.parametrize("key", ["run", "verdict"])
def test_inspect_a_bundle_with_a_hole_in_its_manifest(call: Call, bundle: Bundle, key: str) -> None:
    bundle.manifest[key] = {}
    bundle.write_manifest()
    code, out, err = call("inspect", bundle.root)
    assert (code, out) == (9, "")
    assert err.startswith("error: ")
    assert "manifest.json" in err


def test_verify_a_good_bundle(edgeopt: Run, bundle: Bundle) -> None:
    done = edgeopt("verify", bundle.root)
    assert done.returncode == 0
    assert b"FAILED" not in done.stdout
    assert done.stderr.startswith(b"verify ")
    done = edgeopt("verify", bundle.root, "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["ok"] is True


def test_verify_says_exit_9_for_a_damaged_file(call: Call, bundle: Bundle) -> None:
    path = bundle.root / "model/m.int8.onnx"
    damaged = bytearray(path.read_bytes())
    damaged[-9] ^= 1
    path.write_bytes(damaged)
    code, out, err = call("verify", bundle.root, "--json")
    assert (code, out) == (9, "")
    assert "m.int8.onnx" in err


def test_verify_says_exit_7_for_wrong_answers(call: Call, bundle: Bundle) -> None:
    np.save(bundle.root / "golden/000.float32.0.npy", np.full((1, 5), 9, np.float32))
    seal(bundle)
    code, out, err = call("verify", bundle.root)
    assert code == 7
    assert "FAILED" in out
    assert err.splitlines()[1].startswith("error: ")
    code, out, _ = call("verify", bundle.root, "--json")
    assert (code, json.loads(out)["ok"]) == (7, False)


def test_verify_says_exit_6_for_an_old_runtime(call: Call, bundle: Bundle) -> None:
    bundle.manifest["run"]["minimum"]["onnxruntime"] = "99.0.0"
    seal(bundle)
    code, out, err = call("verify", bundle.root)
    assert (code, out) == (6, "")
    assert "99.0.0" in err


def test_verify_says_exit_9_for_what_is_no_bundle(call: Call, tmp_path: Path) -> None:
    assert call("verify", tmp_path)[0] == 9
    assert call("verify", tmp_path / "nowhere")[0] == 9


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_bench_leaves_no_file_and_no_process(
    number: signal.Signals, code: int, bundle: Bundle, tmp_path: Path
) -> None:
    """C02."""
    out_file, scratch = tmp_path / "out.json", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "edgeopt", "bench", str(bundle.root), "--effort", "release", "-o", str(out_file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(TMPDIR=str(scratch))
    ) as child:
        workers = wait_for_children(child.pid)
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (code, b"")
    assert b"nothing was written" in err
    assert b"Traceback" not in err
    assert not out_file.exists()
    assert list(scratch.iterdir()) == []
    assert_ended(workers)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--target", "rasberry-pi-5"], 4, 'Did you mean "raspberry-pi-5"?'),
        (["--calib", "no such.toml"], 4, "no such.toml"),
        (["--budget", "sise=1MB"], 2, 'Did you mean "size"?'),
        (["--budget", "size=1kB", "--effort", "none"], 5, "size"),
        (["--exclude", "no-such-node"], 3, "no-such-node"),
        (["--calibb", "x"], 2, "--calib"),
        (["--locked", "no such bundle"], 9, "no such bundle"),
    ],
)
def test_a_failed_build_writes_nothing(call: Call, arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    """C01: a distinct code, a sentence, no output at the final path."""
    out = tmp_path / "out"
    found, stdout, err = call(*BUILD[3:], "-o", out, *arguments)
    assert (found, stdout) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert not out.exists()


def test_a_build_with_warnings_prints_pure_json(edgeopt: Run, tmp_path: Path) -> None:
    """C01, C03."""
    _, images = short_sets(tmp_path / "mödel dir")  # one set for both: a part of it is held out, with a warning
    options = ("--calib", images, "--effort", "none", "--json")
    done = edgeopt(*BUILD[3:], "-o", "mödel dir/out (1)", *options, env={"LC_ALL": "C"})
    assert done.returncode == 0
    assert json.loads(done.stdout)["bundle"] == "mödel dir/out (1)"
    assert b"write bundle" in done.stderr
    assert json.loads(edgeopt("inspect", "mödel dir/out (1)", "--json").stdout)["verdict"]["warnings"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the embedded network, not measured."""
    folder = tmp_path_factory.mktemp("built")
    calib, evaluate = short_sets(folder)
    return build(
        Request(model=NET, target="host", out=folder / "out", calib=calib, evaluate=evaluate, effort="none")
    ).root


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_the_older_bundle(
    number: signal.Signals, code: int, built: Path, tmp_path: Path
) -> None:
    """C02: stopped while it measures, with an older bundle of the same model at the destination."""
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    scratch.mkdir()
    shutil.copytree(built, out)
    before = {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    command = [*BUILD, "-o", str(out), "--effort", "release"]
    environment = clean_environment(TMPDIR=str(scratch))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
        workers = wait_for_children(child.pid)
        child.send_signal(number)
        said, err = child.communicate(timeout=60)
    assert (child.returncode, said) == (code, b"")
    assert b"nothing was written" in err
    assert b"Traceback" not in err
    assert {p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "scratch"]
    assert list(scratch.iterdir()) == []
    assert_ended(workers)


def is_running(pid: int) -> bool:
    """Whether a process is there and is not a zombie that waits for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def assert_ended(processes: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, processes))


def wait_for_children(pid: int) -> list[int]:
    """Process ids of the children of a process, once it has some."""
    for _ in range(600):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        if text.split():
            return [int(p) for p in text.split()]
        time.sleep(0.05)
    raise AssertionError("no child appeared")


def test_targets_list(call: Call) -> None:
    code, out, err = call("targets", "list")
    assert (code, err) == (0, "")
    assert any(line.startswith("jetson-orin-nano") and "jetson" in line for line in out.splitlines())
    names = [entry["name"] for entry in json.loads(call("targets", "list", "--json")[1])]
    assert {"host", "raspberry-pi-5", "jetson-orin-nano", "x86-avx2", "x86-avx512-vnni"} <= set(names)


def test_targets_show(call: Call) -> None:
    code, out, _ = call("targets", "show", "jetson")
    assert code == 0
    assert "jetson-orin-nano" in out
    shown = json.loads(call("targets", "show", "raspberry-pi-5", "--json")[1])
    assert (shown["name"], shown["arch"]) == ("raspberry-pi-5", "aarch64")
    code, out, err = call("targets", "show", "rasberry-pi-5")
    assert (code, out) == (4, "")
    assert 'Did you mean "raspberry-pi-5"?' in err


def test_targets_check(call: Call, tmp_path: Path) -> None:
    shipped = ROOT / "targets" / "raspberry-pi-5.toml"
    code, out, err = call("targets", "check", shipped)
    assert (code, out, err) == (0, f"{shipped}: ok\n", "")
    assert json.loads(call("targets", "check", shipped, "--json")[1])["ok"] is True
    bad = tmp_path / "bad board.toml"
    bad.write_text(shipped.read_text().replace("threads =", "thread ="))
    code, out, err = call("targets", "check", bad)
    assert (code, out) == (4, "")
    assert "thread" in err
    code, out, _ = call("targets", "check", bad, "--json")
    found = json.loads(out)
    assert (code, found["ok"]) == (4, False)
    assert found["problems"]


def test_doctor(call: Call) -> None:
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    assert "onnxruntime" in out
    seen = json.loads(call("doctor", "--json")[1])
    assert seen["ok"] is True
    assert {"python", "onnxruntime", "int8 features", "threads", "memory", "peak memory"} <= {
        f["name"] for f in seen["findings"]
    }


def test_doctor_says_what_to_do_when_builds_are_impossible(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"onnxruntime": None, "torch": None}
    real = doctor._version
    found["onnxruntime-gpu"] = None
    monkeypatch.setattr(doctor, "_version", lambda name: found[name] if name in found else real(name))
    code, out, err = call("doctor", "--json")
    assert code == 6
    seen = {f["name"]: f for f in json.loads(out)["findings"]}
    assert (seen["onnxruntime"]["state"], seen["torch"]["state"]) == ("missing", "note")
    assert 'pip install "edgeopt[torch]"' in seen["torch"]["remedy"]
    assert err == "error: builds are not possible here: onnxruntime\nRun: pip install onnxruntime\n"


def test_doctor_reads_a_recorded_machine(tmp_path: Path) -> None:
    """A board with a power-saving governor, no dot product and no way to reset the peak."""
    governor = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("ondemand\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags : fpu avx2\nmodel name : Old\n")
    seen = {f.name: f for f in doctor.findings(tmp_path)}
    for name in ("cpu governor", "peak memory", "int8 features"):
        assert seen[name].state == "note", name
        assert seen[name].remedy, name
    assert seen["cpu governor"].value == "ondemand"
