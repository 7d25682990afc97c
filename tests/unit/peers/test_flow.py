"""scripts/compare_peers: what is run for a network, what a failure leaves behind, and that a run is taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


class Calls(list[str]):
    """What children were asked for."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A zoo of one network, squeezenet, whose children are stood in for: one peer fails, all others write a file."""
    from _peers import environments, making, watched

    made = Calls()
    folder = tmp_path / "zoo" / "models" / "squeezenet"
    folder.mkdir(parents=True)
    for name in ("model.onnx", "calib.toml", "eval-dev.toml", "eval-final.toml", "eval-labels.npy"):
        (folder / name).write_text(name)

    def run(command: list[str], *, folder: Path, cwd: Path | None = None, **rest: Any) -> watched.Watched:
        folder.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = {}
        words = [str(word) for word in command]
        if "-m" in words and words[words.index("-m") + 1] == "_peers.judge":
            job = json.loads(Path(words[-1]).read_text())
            made.append("save" if "save" in job else f"judge {','.join(job.get('models', ['export']))}")
            (Path(job["export"]).mkdir(parents=True, exist_ok=True) if "export" in job else None)
            one = {"sqnr_db": {"y": 20.0}, "largest_error": {"y": 0.1}, "samples": 1, "groups": 10}
            found = {"sets": {"photos": one}, "macs": {"reason": "none"}}
            (Path(job["save"]).write_text("fused" + Path(job["model"]).read_text()) if "save" in job else None)
            told = {"models": dict.fromkeys(job.get("models", ()), found)}
        elif "compare" in words:
            made.append("compare")
            return watched.Watched(code=7, seconds=1.0, peak_bytes=1, stdout="", stderr="error: too noisy\nmore")
        elif "build" in words:
            made.append("build")
            return watched.Watched(code=4, seconds=1.0, peak_bytes=1, stdout="", stderr="error: not today\n")
        elif words[1] == "-c":
            made.append("convert")
            for suffix in ("", ".bin"):
                Path(words[4]).with_suffix(suffix or ".xml").write_text("converted")
        else:
            job = json.loads(Path(words[-1]).read_text())
            made.append(f"{Path(words[1]).stem} {job['method']}")
            if job["method"] == "percentile":
                return watched.Watched(
                    code=1, seconds=1.0, peak_bytes=1, stdout="", stderr="Traceback\nMemoryError: no"
                )
            for suffix in (".bin", ".xml") if job["out"].endswith(".xml") else (".onnx",):
                Path(job["out"]).with_suffix(suffix).write_text(job["method"] + Path(job["model"]).read_text())
            told = {"steps": ["quantized"]}
        return watched.Watched(code=0, seconds=2.0, peak_bytes=5, stdout=f"chatter\n{json.dumps(told)}\n", stderr="")

    monkeypatch.setattr(watched, "run", run)
    monkeypatch.setattr(environments, "python_of", lambda name, cache: Path(f"/env/{name}/python"))
    monkeypatch.setattr(making, "source_digest", lambda: "1")
    return made


def run_main(folder: Path, *more: str) -> int:
    from _peers import main

    return main.main(["--cache", str(folder / "zoo"), "--only", "squeezenet", *more], "usage")


def test_a_failure_is_a_row_and_a_miss_and_the_rest_goes_on(
    tmp_path: Path, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(tmp_path, "--runtime", "onnxruntime") == 1
    told = capsys.readouterr().out
    row = next(line for line in told.splitlines() if "| onnxruntime percentile |" in line)
    assert row.endswith("**MemoryError: no** |")
    assert "| SqueezeNet 1.1 | int8@onnxruntime | SQNR >= 34 dB | error: not today | **missed** |" in told
    assert [call for call in calls if call.startswith("with_")] == [
        "with_onnxruntime min-max",
        "with_onnxruntime min-max",  # of the network as it came, and as edgeopt fused it
        "with_onnxruntime percentile",
        "with_nncf onnx",
        "with_nncf openvino",
        "with_nncf openvino mixed",
    ]
    assert "judge NNCF on ONNX" in calls
    assert "judge NNCF on OpenVINO" not in calls  # that form runs in the other runtime
    assert "convert" not in calls
    assert "compare" not in calls  # there is nothing of edgeopt's to compare with


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(tmp_path) == 1
    first = list(calls)
    assert first.count("convert") == 4  # float, min-max twice and NNCF's ONNX, for OpenVINO
    calls.clear()
    assert run_main(tmp_path) == 1
    assert calls == ["with_onnxruntime percentile", "build", "build"]  # what failed is tried again
    calls.clear()
    (tmp_path / "zoo" / "models" / "squeezenet" / "model.onnx").write_text("another")
    run_main(tmp_path)
    assert sorted(calls) == sorted(first)
    calls.clear()
    capsys.readouterr()
    records = str(tmp_path / "peers" / "records")
    assert run_main(tmp_path, "--from", records) == 1
    assert calls == []
    told = (Path(records) / "results.json").read_text()
    assert "scripts/_peers/host-openvino.toml" in told
    assert SCRIPTS not in told
    assert "MemoryError: no" in capsys.readouterr().out


OPEN = "NNCF on ONNX against edgeopt int8 in onnxruntime"


def test_bars_are_measured_first_and_what_is_measured_outlives_an_interrupt(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from _peers import main, making, timing

    def build(place: Any, name: str, network: Any, title: str, how: Any, runtime: str) -> dict[str, Any]:
        file = tmp_path / f"{runtime}.onnx"
        file.write_text(runtime)
        told = {"precision": "int8", "ships": "int8", "bundle": str(tmp_path), "bytes": 1, "options": {}}
        return {**told, "path": str(file), "warnings": [], "not_kept": []}

    measured: list[tuple[str, str, float]] = []

    def compared(place: Any, name: str, network: Any, what: str, a: Any, b: Any, effort: str, seconds: float) -> Any:
        if len(measured) == 6:
            raise KeyboardInterrupt
        measured.append((what, effort, seconds))
        high = 1.05 if what == OPEN else 0.99
        ratio, side = {"ratio": 0.98, "low": 0.97, "high": high}, {"median_ns": 1, "p99_ns": 2, "memory_bytes": 3}
        return {"latency": ratio, "memory": ratio, "side_a": side, "side_b": side, "machine": {"cpu": "x"}}

    monkeypatch.setattr(making, "build", build)
    monkeypatch.setattr(timing, "compared", compared)
    with pytest.raises(KeyboardInterrupt):
        run_main(tmp_path)
    assert "10 measurements of at most" in capsys.readouterr().err
    assert measured == [
        ("float against edgeopt int8 in onnxruntime", "standard", main.RATIO_SECONDS),
        ("onnxruntime min-max against edgeopt int8 in onnxruntime", "standard", 80.0),
        ("onnxruntime min-max, fused by edgeopt against edgeopt int8 in onnxruntime", "standard", 80.0),
        (OPEN, "standard", 80.0),
        (f"{OPEN} at length", "standard", 400.0),
        ("float against edgeopt int8 in openvino", "standard", main.RATIO_SECONDS),
    ]
    records = tmp_path / "peers" / "records"
    kept = json.loads((records / main.RESULTS).read_text())["networks"]["squeezenet"]["comparisons"]
    whats = [f"{one['a']} against {one['b']} in {one['runtime']}" for one in kept]
    assert whats == [what for what, _, _ in measured if "at length" not in what]
    assert [one["latency"]["high"] for one in kept] == [0.99] * 5, "of an open one the longer measurement counts"
    assert run_main(tmp_path, "--from", str(records)) == 1
    told = capsys.readouterr().out
    assert "| SqueezeNet 1.1 | int8@onnxruntime | SQNR >= 34 dB | 20.00 dB | **missed** |" in told


def test_the_held_photos_are_judged_alone_with_final(tmp_path: Path, calls: Calls) -> None:
    run_main(tmp_path)
    jobs = list((tmp_path / "peers" / "work" / "squeezenet").rglob("job.json"))
    assert jobs
    assert not any("eval-final" in job.read_text() for job in jobs)
    built = json.loads(next((tmp_path / "peers" / "records").rglob("*int8-onnxruntime/build.json")).read_text())
    assert "eval-dev.toml" in built["value"]["words"]
    run_main(tmp_path, "--final")
    text = [job.read_text() for job in (tmp_path / "peers" / "work" / "squeezenet").rglob("judge*/job.json")]
    assert all("eval-final.toml" in one and '"start": 1' in one for one in text)
    built = json.loads(next((tmp_path / "peers" / "records").rglob("*int8-onnxruntime/build.json")).read_text())
    assert "eval-dev.toml" in built["value"]["words"]


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        ("Traceback\n  File x\nValueError: two\nlines: of it\n", "ValueError: two"),
        ("a.b.InvalidArgument: [ONNX] : 2 : bad\n index: 2\n Please fix\n", "a.b.InvalidArgument: [ONNX] : 2 : bad"),
        ("warning: x\nerror: no such\nremedy", "error: no such"),
        (f"error: {Path.home() / 'a/model.xml'} is no such", "error: ~/a/model.xml is no such"),
        ("Killed\n", "Killed"),
        ("", "exit code 9"),
    ],
)
def test_a_failure_is_told_in_one_line(stderr: str, told: str) -> None:
    from _peers import stages, watched

    done = watched.Watched(code=9, seconds=1.0, peak_bytes=1, stdout="", stderr=stderr)
    assert stages.why(done) == told


def test_a_network_that_is_not_in_the_cache_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_main(tmp_path)
    assert caught.value.code == 2
    assert "squeezenet; run scripts/zoo first" in capsys.readouterr().err
