"""bench.pyz as a person with a device runs it: output, exit codes, signals."""

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

Bundle = Any


def command(bundle: Bundle, *arguments: str) -> list[str]:
    return [sys.executable, str(bundle.root / "bench.pyz"), *arguments]


def run(bundle: Bundle, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(bundle, *arguments), capture_output=True, text=True, check=False, **options)


@pytest.fixture
def null_bundle(bundle: Bundle) -> Bundle:
    """A bundle whose one artifact is busy for 2 ms a call, on the runner without a device."""
    (bundle.root / "model/m.int8.onnx").rename(bundle.root / "model/spin:2ms")
    (bundle.root / "model/m.float32.onnx").unlink()
    bundle.manifest["backend"]["name"] = "null"
    bundle.manifest["run"]["minimum"] = {}
    bundle.manifest["default_artifact"] = "model/spin:2ms"
    bundle.manifest["artifacts"] = [{**bundle.manifest["artifacts"][0], "path": "model/spin:2ms"}]
    bundle.seal()
    return bundle


def test_bench_writes_json_and_a_table(bundle: Bundle, tmp_path: Path) -> None:
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run(bundle, "--json", "out.json", "--seconds", "2", "--threads", "1", cwd=tmp_path, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "written: out.json\n")
    measurement = json.loads((tmp_path / "out.json").read_text())
    assert measurement["schema"] == "edgeopt.measurement/2"
    assert [subject["name"] for subject in measurement["subjects"]] == ["float32", "int8"]
    order = measurement["order"]
    assert order == (["float32", "int8", "int8", "float32"] * 2)[: len(order)]
    assert measurement["subjects"][1]["file"] == "model/m.int8.onnx"
    assert measurement["subjects"][1]["sha256"] == bundle.manifest["artifacts"][0]["sha256"]
    assert "tiny for a-board" in done.stdout
    assert "int8 takes " in done.stdout
    assert done.stdout.isascii()
    assert max(len(line) for line in done.stdout.splitlines()) <= 130
    assert sorted(path.name for path in tmp_path.iterdir()) == [bundle.root.name, "out.json"]


def test_json_on_stdout_is_nothing_but_json(null_bundle: Bundle) -> None:
    done = run(null_bundle, "--json", "-", "--seconds", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["subjects"][0]["runtime"]["name"] == "null"


def test_the_options_of_a_measurement_reach_it(null_bundle: Bundle) -> None:
    options = ["--fps", "200", "--no-pin", "--seconds", "2", "--json", "-"]
    done = run(null_bundle, *options)
    assert (done.returncode, done.stderr) == (0, "")
    measurement = json.loads(done.stdout)
    assert measurement["load"] == {"kind": "periodic", "fps": 200.0, "period_ns": 5000000}
    assert (measurement["affinity"], measurement["seconds"]) == (None, 2.0)
    assert measurement["environment"]["missing"]["affinity"] == "not asked for"
    assert measurement["subjects"][0]["precision"] == "int8"


def test_B04_a_missing_provider_is_6_unless_the_cpu_will_do(bundle: Bundle, tmp_path: Path) -> None:
    bundle.manifest["run"]["provider"] = "CUDAExecutionProvider"
    bundle.seal()
    done = run(bundle, "--seconds", "1")
    assert (done.returncode, done.stdout) == (6, "")
    assert "CUDAExecutionProvider" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run(bundle, "--seconds", "1", "--allow-fallback", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0
    measurement = json.loads((tmp_path / "out.json").read_text())
    for subject in measurement["subjects"]:
        assert subject["runtime"]["asked"] == "CUDAExecutionProvider"
        assert subject["runtime"]["provider"] == "CPUExecutionProvider"
    assert "ran on CPUExecutionProvider" in done.stdout


def test_a_float_model_that_is_called_int8_is_8_after_its_results(bundle: Bundle, tmp_path: Path) -> None:
    """The claim is refuted, and the figures are there all the same."""
    shutil.copyfile(bundle.root / "model/m.float32.onnx", bundle.root / "model/m.int8.onnx")
    bundle.seal()
    done = run(bundle, "--seconds", "1", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 8
    assert "the measurement is invalid: int8: int8 is claimed, and no" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["results"]["stability"]["grade"] == "invalid"
    assert "tiny for a-board" in done.stdout


def test_verify_exit_codes(bundle: Bundle, tmp_path: Path) -> None:
    done = run(bundle, "verify", "--json", str(tmp_path / "v.json"))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "verified"
    assert json.loads((tmp_path / "v.json").read_text())["ok"] is True
    bundle.save_golden("000.float32.0.npy", np.zeros((1, 5), np.float32))
    bundle.seal()
    done = run(bundle, "verify")
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "NOT verified: 2 of 5 checks failed"
    (bundle.root / "extra").write_text("")
    done = run(bundle, "verify")
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr == "bench.pyz: extra is not part of the bundle: no list has it\n"


def test_bench_refuses_a_damaged_bundle_before_it_measures(bundle: Bundle) -> None:
    with (bundle.root / "model/m.int8.onnx").open("ab") as stream:
        stream.write(b"x")
    done = run(bundle)
    assert done.returncode == 9
    assert done.stderr == "bench.pyz: model/m.int8.onnx is damaged: its sha256 is not the one in SHA256SUMS\n"


def test_bench_failure_is_8_with_one_line(bundle: Bundle) -> None:
    (bundle.root / "model/m.int8.onnx").write_bytes(b"no model")
    bundle.seal()
    done = run(bundle, "--seconds", "1")
    assert done.returncode == 8
    assert done.stderr.startswith("bench.pyz: int8: no process could measure it: ")
    assert done.stderr.count("\n") == 1


def test_missing_runtime_is_6_with_the_pip_line(bundle: Bundle) -> None:
    """A venv-less interpreter without site packages has no numpy; its workers have none either."""
    (bundle.root.parent / "block").mkdir()
    (bundle.root.parent / "block/numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\")")
    environment = {**os.environ, "PYTHONPATH": str(bundle.root.parent / "block")}
    for name in ("bench", "verify"):
        done = run(bundle, name, env=environment)
        assert done.returncode == 6
        assert done.stderr.count("\n") == 1
        assert done.stderr.endswith('python3 -m pip install numpy "onnxruntime>=1.10.0"\n')


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--seconds", "nan"], "--seconds must be above 0"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--json", "/none/such/out.json"], "cannot write --json"),
        (["--json", "/"], "cannot write --json"),
        (["--bundle", "/none/such"], "is no folder"),
        (["--fps", "0"], "--fps must be from 0.1"),
        (["--fps", "nan"], "--fps must be from 0.1"),
        (["--fps", "20000"], "to 10000"),
        (["verify", "--effort", "quick"], "--effort means nothing to verify"),
        (["verify", "--fps", "30"], "--fps means nothing to verify"),
        (["verify", "--no-pin"], "--no-pin means nothing to verify"),
        (["verify", "--allow-fallback"], "--allow-fallback means nothing to verify"),
        (["fly"], "invalid choice"),
        (["--effort", "heroic"], "invalid choice"),
    ],
)
def test_wrong_use_is_2_with_one_line(bundle: Bundle, arguments: list[str], words: str) -> None:
    done = run(bundle, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["manifest.json", "README.md", "out.txt", "golden/out.json"])
def test_results_never_damage_the_bundle(bundle: Bundle, name: str) -> None:

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in bundle.root.rglob("*") if path.is_file()}

    before = content()
    done = run(bundle, "verify", "--json", name, cwd=bundle.root)
    assert done.returncode == 2
    assert f"cannot write --json {name}: it " in done.stderr
    assert content() == before


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe"])
def test_a_result_never_takes_the_place_of_a_device_or_a_pipe(bundle: Bundle, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    if kind != "pipe":
        path = tmp_path / "link"
        path.symlink_to("pipe")
    done = run(bundle, "verify", "--json", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no plain file" in done.stderr
    assert (tmp_path / "pipe").is_fifo()


def test_a_result_goes_through_a_link_and_leaves_its_neighbours_alone(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json.tmp").write_text("mine")
    (tmp_path / "real.json.tmp").write_text("mine")
    done = run(bundle, "verify", "--json", str(tmp_path / "link.json"))
    assert done.returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["schema"] == "edgeopt.verification/1"
    assert [(tmp_path / name).read_text() for name in ("link.json.tmp", "real.json.tmp")] == ["mine", "mine"]


def test_a_result_that_cannot_be_written_is_1_and_named(tmp_path: Path) -> None:
    """No room for it: what stood there stays, and nothing lies beside it."""
    path, root = tmp_path / "out.json", tmp_path / "bundle"
    path.write_text("old")
    root.mkdir()
    code = (
        "import resource, sys; from runtime_bench import cli; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "cli._bench = lambda options: cli._deliver({'long': 'x' * 1000}, options.json, list) or 0;"
        f"sys.exit(cli.main(['--bundle', {str(root)!r}, '--json', {str(path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert (sorted(entry.name for entry in tmp_path.iterdir()), path.read_text()) == (["bundle", "out.json"], "old")


def test_results_at_the_top_of_the_bundle_may_be_written_again(bundle: Bundle) -> None:
    for _ in range(2):
        done = run(bundle, "verify", "--json", "verified.json", cwd=bundle.root)
        assert (done.returncode, done.stderr) == (0, "written: verified.json\n")
    assert json.loads((bundle.root / "verified.json").read_text())["schema"] == "edgeopt.verification/1"


def test_a_folder_that_is_no_bundle_is_9(bundle: Bundle, tmp_path: Path) -> None:
    done = run(bundle, "--bundle", str(tmp_path))
    assert done.returncode == 9
    assert "not an edgeopt bundle" in done.stderr


def test_a_closed_pipe_is_no_traceback(null_bundle: Bundle) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(null_bundle, "--json", "-", "--seconds", "0.3"),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


def workers_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.add(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_for(condition: Any, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("nothing happened in time")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_leaves_no_worker_and_no_file(null_bundle: Bundle, tmp_path: Path, number: int, code: int) -> None:
    """SIGKILL included: Linux ends the worker when its parent is gone."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    bench = subprocess.Popen(
        command(null_bundle, "--effort", "release", "--json", str(tmp_path / "out.json")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        spinning = wait_for(lambda: {w for w in workers_of(bench.pid) if cpu_ticks(w) > 20})
        bench.send_signal(number)
        output, errors = bench.communicate(timeout=20)
    finally:
        bench.kill()
    assert bench.returncode == code
    assert (output, errors) == ("", "")
    wait_for(lambda: not any(alive(pid) for pid in spinning))
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "out.json").exists()
    assert not (tmp_path / "out.json.tmp").exists()


def cpu_ticks(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[11])
    except OSError:
        return 0
