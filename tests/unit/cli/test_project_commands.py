"""build and plan in a folder with a project file, init, completion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeopt.calibration import embedded_sets
from edgeopt.model import file_sha256
from tests.short_sets import NET, short_sets
from tests.unit.cli.conftest import Call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(NET.read_bytes())
    return tmp_path


@pytest.fixture
def brief(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of a build of few samples."""
    calib, evaluate = short_sets(tmp_path_factory.mktemp("short"))
    return "--calib", calib, "--eval", evaluate, "--effort", "none"


def put(folder: Path, text: str) -> None:
    (folder / "edgeopt.toml").write_text('schema = "edgeopt.project/1"\n' + text)


def test_the_target_alone_is_enough(folder: Path, call: Call) -> None:
    assert embedded_sets(file_sha256(NET)) is not None
    put(folder, 'model = "net.onnx"\neffort = "none"\nbundles = "out"\n[targets.rpi5]\nname = "doorbell"\n')
    code, out, err = call("build", "--target", "raspberry-pi-5")
    assert (code, out.strip()) == (0, "out/doorbell-raspberry-pi-5"), err
    assert (folder / "out/doorbell-raspberry-pi-5/model/doorbell.int8.onnx").is_file()


def test_flags_win_over_the_file(folder: Path, call: Call, brief: tuple[str, ...]) -> None:
    put(folder, 'model = "net.onnx"\ntarget = "rpi5"\neffort = "quick"\n[budget]\nsize = "1kB"\n')
    code, out, _ = call("build", *brief, "--budget", "size=1MB", "--out", "here")
    assert (code, out.strip()) == (0, "here")


def test_a_named_model_leaves_the_file_alone(folder: Path, call: Call) -> None:
    put(folder, 'model = "other.onnx"\ncalib = "gone.toml"\nwrong = 1\n')
    assert call("build", "net.onnx", "--target", "host", "--effort", "none")[0] == 0


@pytest.mark.parametrize(
    ("text", "arguments", "code", "said"),
    [
        ('model = "net.onnx"', ("build", "--target", "host", "--name", "../x"), 2, 'write "x"'),
        ('model = "net.onnx"', ("build", "--target", "host", "--input-layout", "NHWC"), 2, "add --input uint8"),
        (None, ("build", "--target", "host"), 2, "there is no edgeopt.toml here"),
        ('model = "net.onnx"', ("build",), 2, "Missing option --target"),
        ("", ("build", "--target", "host"), 2, "names no model"),
        ('modle = "net.onnx"', ("build", "--target", "host"), 4, 'Did you mean "model"'),
        ('model = "gone.onnx"', ("build", "--target", "host"), 3, "gone.onnx"),
        ('model = "net.onnx"', ("build", "--target", "hots"), 4, 'Did you mean "host"'),
    ],
)
def test_what_is_missing_is_named(
    folder: Path, call: Call, text: str | None, arguments: tuple[str, ...], code: int, said: str
) -> None:
    if text is not None:
        put(folder, text + "\n")
    found, out, err = call(*arguments)
    assert (found, out) == (code, "")
    assert said in err
    assert {p.name for p in folder.iterdir()} <= {"net.onnx", "edgeopt.toml"}


def test_init_writes_a_file_that_builds(folder: Path, call: Call) -> None:
    code, out, err = call("init", "net.onnx", "--target", "rpi5")
    assert (code, out.strip()) == (0, "edgeopt.toml"), err
    text = (folder / "edgeopt.toml").read_text()
    assert "#   x: float32[N, 1, 28, 28]" in text
    assert '# "x" = "1x1x28x28"' in text
    assert call("build", "--effort", "none")[1].strip() == "net-rpi5"
    again = call("init", "net.onnx")
    assert again[0] == 1
    assert "edgeopt.toml cannot be written: File exists" in again[2]
    assert (folder / "edgeopt.toml").read_text() == text


def test_every_comment_of_the_template_is_a_key(folder: Path, call: Call) -> None:
    from edgeopt.project import read_project

    call("init", "net.onnx")
    lines = (folder / "edgeopt.toml").read_text().splitlines()
    opened = [line[2:] if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line for line in lines]
    opened = [line for line in opened if "`" not in line]
    (folder / "edgeopt.toml").write_text("\n".join(opened))
    found = read_project(folder / "edgeopt.toml")
    assert found.settings.budget == {"memory": "64MB", "size": "5MB", "p95": "20ms", "load": "200ms"}
    assert found.settings.shapes == {"x": "1x1x28x28"}
    assert list(found.overrides) == ["raspberry-pi-5"]


def test_plan_predicts_and_runs_nothing(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeopt.interpreter import Interpreter

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a model was run")

    monkeypatch.setattr(Interpreter, "__init__", refuse)
    (folder / "calib.toml").write_text("")
    code, out, err = call("plan", "net.onnx", "--target", "rpi5", "--calib", "calib.toml", "--json")
    assert code == 0, err
    found = json.loads(out)
    steps = {step["name"]: step for step in found["steps"]}
    int8 = steps["quantize-int8"]
    assert int8["status"] == "applies"
    assert int8["after"]["weight_bytes"] < 0.35 * found["before"]["weight_bytes"]
    assert int8["after"]["peak_activation_bytes"] < found["before"]["peak_activation_bytes"]
    assert steps["bias-correction"]["status"] == "needs results"
    text = call("plan", "net.onnx", "--target", "rpi5", "--budget", "size=10kB,memory=64MB")[1]
    assert "size 10.0 kB: the model alone takes" in text
    assert "memory 64" not in text
    assert "quantize-int8" in text, "the embedded network has sets of its own"
    assert "mean-to-pool" in text
    assert "quantize-int8" not in call("plan", "net.onnx", "--target", "rpi5", "--calib", "random")[1]


def test_plan_predicts_the_bytes_that_a_build_reaches(folder: Path, call: Call, brief: tuple[str, ...]) -> None:
    planned = json.loads(call("plan", "net.onnx", "--target", "rpi5", "--calib", "c.toml", "--json")[1])
    bundle = Path(call("build", "net.onnx", "--target", "rpi5", *brief)[1].strip())
    diary = [json.loads(line) for line in (bundle / "diary.jsonl").read_text().splitlines()]
    reached = next(row for row in diary if row["step"]["name"] == "quantize-int8")["after"]
    predicted = next(step for step in planned["steps"] if step["name"] == "quantize-int8")["after"]
    assert abs(predicted["weight_bytes"] - reached["weight_bytes"]) <= 0.05 * reached["weight_bytes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(call: Call, shell: str) -> None:
    code, out, _ = call("completion", shell)
    assert code == 0
    assert "_EDGEOPT_COMPLETE" in out


def test_targets_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    from edgeopt.cli import group

    found = ShellComplete(group, {}, "edgeopt", "_EDGEOPT_COMPLETE")
    assert "raspberry-pi-5" in [c.value for c in found.get_completions(["build", "--target"], "rasp")]
    assert "build" in [c.value for c in found.get_completions([], "bu")]
