"""The onnxruntime runner: threads, options, provider (B04), and a real measurement."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import runtime_bench
from runtime_bench import arrays
from runtime_bench.errors import RuntimeMissing
from runtime_bench.runners import get
from runtime_bench.runners import onnxruntime as runner


def test_infer_and_bind(tiny_model: Path) -> None:
    loaded = runner.load(str(tiny_model), {"threads": 1, "session.intra_op.allow_spinning": "0"})
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert list(loaded.infer({"x": x})) == ["y"]
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], x[:, :5])
    assert loaded.bind({"x": x})()[0].shape == (1, 5)
    assert loaded.runtime == {
        "name": "onnxruntime",
        "version": onnxruntime.__version__,
        "provider": "CPUExecutionProvider",
    }


def test_settings_reach_the_session(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    real = onnxruntime.InferenceSession

    def spy(path: str, settings: onnxruntime.SessionOptions, providers: list[str]) -> onnxruntime.InferenceSession:
        seen.update(
            intra=settings.intra_op_num_threads,
            inter=settings.inter_op_num_threads,
            entry=settings.get_session_config_entry("session.qdqisint8allowed"),
            providers=providers,
        )
        return real(path, settings, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    runner.load(str(tiny_model), {"threads": 2, "session.qdqisint8allowed": 1})
    assert seen == {"intra": 2, "inter": 1, "entry": "1", "providers": ["CPUExecutionProvider"]}


@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "CUDAExecutionProviderr"])
def test_b04_a_provider_that_is_not_there_is_an_error(tiny_model: Path, provider: str) -> None:
    with pytest.raises(RuntimeMissing, match=rf"asked for {provider}, this onnxruntime has: .*CPUExecutionProvider"):
        runner.load(str(tiny_model), {"provider": provider})


def test_b04_a_session_that_fell_back_is_an_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["FastExecutionProvider"])
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda path, settings, providers: real(path, settings))
    with pytest.raises(RuntimeMissing, match="asked for FastExecutionProvider, the session uses: CPUExecutionProvider"):
        runner.load(str(tiny_model), {"provider": "FastExecutionProvider"})


def test_unknown_runner_names_the_known_ones() -> None:
    with pytest.raises(RuntimeMissing, match="null, onnxruntime"):
        get("tpu")


def test_measure_a_real_model(tiny_model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8), np.float32))
    digest = hashlib.sha256(tiny_model.read_bytes()).hexdigest()
    subject = runtime_bench.Subject(name="float32", path=str(tiny_model), sha256=digest)
    told: list[str] = []
    samples = [{"x": str(tmp_path / "x.npy")}]
    measurement = runtime_bench.measure([subject], samples, seconds=1.0, memory=False, progress=told.append)
    entry = measurement["subjects"][0]
    assert entry["file"] == "tiny.onnx"
    assert entry["sha256"] == digest
    assert entry["runtime"]["version"] == onnxruntime.__version__
    assert all(record["phases_ns"]["import"] > record["phases_ns"]["first"] for record in entry["processes"])
    assert str(tmp_path) not in str(measurement)


def test_a_file_that_is_no_model_fails_with_the_runtimes_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model")
    subject = runtime_bench.Subject(name="bad", path=str(bad), sha256="0")
    with pytest.raises(runtime_bench.BenchFailure, match="ONNXRuntimeError"):
        runtime_bench.measure([subject], [], seconds=0.5, memory=False)


def test_arrays_are_read_without_trust(tmp_path: Path) -> None:
    for values in (np.float32(3), np.zeros((0, 3)), np.arange(6, dtype=np.int64).reshape(2, 3)):
        np.save(tmp_path / "a.npy", values)
        found = arrays.load_array(str(tmp_path / "a.npy"))
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"(?i)object|pickle"):
        arrays.load_array(str(tmp_path / "pickle.npy"))
    np.save(tmp_path / "huge.npy", np.zeros(10))
    data = (tmp_path / "huge.npy").read_bytes().replace(b"(10,), }              ", b"(1000000000000000,), }")
    (tmp_path / "huge.npy").write_bytes(data)
    assert b"1000000000000000" in data
    with pytest.raises((ValueError, OSError)):
        arrays.load_array(str(tmp_path / "huge.npy"))
