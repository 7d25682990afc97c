"""compare on bundles and models: what is measured together, on which inputs, with which options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import runtime_bench
from edgeopt import comparing
from edgeopt.comparing import Limits, Request
from edgeopt.comparing.now import HALF_WIDTH
from edgeopt.errors import BenchError, BundleError, ModelError, ToolchainError
from tests.unit.comparing import bundles
from tests.unit.recordings import compared, groups, measurement, memory, subject

Json = dict[str, Any]

EYE = np.eye(8, 5, dtype=np.float32)


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is there; asking a process each time would be the slow part."""
    monkeypatch.setattr("runtime_bench.verify.require_runtime", lambda contract: {})


class Fake:
    """Stands in for ``runtime_bench.measure``: B takes ``factor`` times as long; keeps what it was asked for."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.subjects: Sequence[runtime_bench.Subject] = ()
        self.samples: Sequence[Mapping[str, str]] = ()
        self.inputs: list[np.ndarray] = []
        self.settings: Json = {}

    def __call__(self, subjects: Any, samples: Any, **settings: Any) -> Json:
        self.subjects, self.samples, self.settings = subjects, samples, settings
        self.inputs = [np.load(path) for sample in samples for path in sample.values()]
        factors = {"A": 1.0, "B": self.factor}
        made = [subject(s.name, groups(factors[s.name], seed=i), memory(5, 6, 7)) for i, s in enumerate(subjects)]
        return measurement(*made, threads=settings["threads"])


def run(a: Path, b: Path, fake: Fake, **settings: Any) -> Json:
    limits = settings.pop("limits", Limits())
    return comparing.run(Request(a=a, b=b, limits=limits, **settings), measure=fake)


def test_two_bundles_are_measured_side_by_side(tmp_path: Path) -> None:
    a = bundles.make(tmp_path / "a", run={"options": {"session.x": "1"}})
    b = bundles.make(tmp_path / "b", run={"options": {"session.x": "2"}}, weights=EYE)
    fake = Fake(1.1)
    found = run(a, b, fake, seconds=20.0)
    assert [s.name for s in fake.subjects] == ["A", "B"]
    assert [s.path for s in fake.subjects] == [str(a / "model/m.int8.onnx"), str(b / "model/m.int8.onnx")]
    assert [dict(s.options) for s in fake.subjects] == [
        {"session.x": value, "provider": "CPUExecutionProvider"} for value in "12"
    ]
    assert [s.precision for s in fake.subjects] == ["int8", "int8"]
    assert fake.settings["threads"] == 1
    assert (fake.settings["effort"], fake.settings["seconds"]) == ("standard", 20.0)
    assert fake.settings["half_width"] == HALF_WIDTH == 0.01
    assert [sample["x"] for sample in fake.samples] == [str(a / f"golden/00{i}.input.0.npy") for i in range(3)]
    assert (found["how"], found["verdict"]) == ("now", "slower")
    assert found["latency"]["median"]["low"] < 1.1 < found["latency"]["median"]["high"]
    assert found["notes"] == ["both ran on 3 golden samples of A"]
    assert [s["name"] for s in found["measurement"]["subjects"]] == ["A", "B"]
    assert found["artifact"]["a_bytes"] == (a / "model/m.int8.onnx").stat().st_size
    assert found["a"]["given"] == str(a)


def test_an_artifact_of_a_bundle_is_chosen_by_its_precision(tmp_path: Path) -> None:
    a = bundles.make(tmp_path / "a")
    fake = Fake()
    run(Path(f"{a}#float32"), a, fake)
    assert [s.precision for s in fake.subjects] == ["float32", "int8"]
    with pytest.raises(BundleError, match='no artifact "int9". Did you mean "int8"'):
        run(Path(f"{a}#int9"), a, fake)


def test_the_same_file_twice_is_measured_and_told(tmp_path: Path) -> None:
    a = bundles.make(tmp_path / "a")
    found = run(a, a, Fake())
    assert "A and B are the same file" in found["notes"]
    assert found["verdict"] == "equivalent"


def test_a_bare_model_runs_like_the_bundle_beside_it(tmp_path: Path) -> None:
    a = bundles.make(tmp_path / "a", run={"options": {"session.x": "1"}, "threads": 1})
    b = bundles.model(tmp_path / "m.onnx", EYE)
    for pair in ((a, b), (b, a)):
        fake = Fake()
        found = run(*pair, fake)
        options = {"session.x": "1", "provider": "CPUExecutionProvider"}
        assert [dict(s.options) for s in fake.subjects] == [options, options]
        assert fake.samples[0]["x"] == str(a / "golden/000.input.0.npy")
        name = "A" if pair[0] is a else "B"
        assert f"both ran on 3 golden samples of {name}" in found["notes"]


def test_two_bare_models_get_one_seeded_sample(tmp_path: Path) -> None:
    a, b = bundles.model(tmp_path / "a.onnx", EYE), bundles.model(tmp_path / "b.onnx", 2 * EYE)
    first, second = Fake(), Fake()
    found = run(a, b, first)
    run(a, b, second)
    (value,) = first.inputs
    assert (value.shape, value.dtype) == ((1, 8), np.float32)
    assert np.array_equal(value, second.inputs[0])
    assert value.std() > 0
    assert "both ran on one sample of seeded random values" in found["notes"]
    assert not Path(first.samples[0]["x"]).exists()
    assert [s.precision for s in first.subjects] == [None, None]


def shaped(path: Path, shape: Sequence[int | str], *, name: str = "x", kind: int = TensorProto.FLOAT) -> Path:
    """y = Identity(x)."""
    values = [helper.make_tensor_value_info(n, kind, shape) for n in (name, "y")]
    graph = helper.make_graph([helper.make_node("Identity", [name], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), str(path))
    return path


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"shape": [1, 9]}, "the input x: float32[1, 8] of A is x: float32[1, 9] in B"),
        ({"shape": [1, 8, 1]}, "float32[1, 8, 1] in B"),
        ({"shape": [1, 8], "kind": TensorProto.DOUBLE}, "x: float64[1, 8] in B"),
        (
            {"shape": [1, 8], "name": "z"},
            "only A has the input x: float32[1, 8]; only B has the input z: ",
        ),
    ],
)
def test_other_signatures_are_refused_before_measuring(tmp_path: Path, other: Json, words: str) -> None:
    a, b = shaped(tmp_path / "a.onnx", [1, 8]), shaped(tmp_path / "b.onnx", **other)
    fake = Fake()
    with pytest.raises(BenchError) as caught:
        run(a, b, fake)
    assert words in str(caught.value)
    assert fake.settings == {}


def test_an_open_dim_fits_a_fixed_one(tmp_path: Path) -> None:
    a, b = shaped(tmp_path / "a.onnx", [1, 8]), shaped(tmp_path / "b.onnx", ["N", 8])
    assert run(a, b, Fake())["how"] == "now"
    wide = shaped(tmp_path / "c.onnx", [1, "W"])
    with pytest.raises(Exception, match="--shape"):
        run(wide, wide, Fake())
    fake = Fake()
    run(wide, wide, fake, shapes={"x": (1, 12)})
    assert fake.inputs[0].shape == (1, 12)


def test_another_output_is_refused(tmp_path: Path) -> None:
    a, b = bundles.model(tmp_path / "a.onnx", EYE), bundles.model(tmp_path / "b.onnx", EYE, output="scores")
    with pytest.raises(BenchError, match="only A has the output y"):
        run(a, b, Fake())


def test_bundles_with_other_threads_want_to_be_told(tmp_path: Path) -> None:
    a, b = bundles.make(tmp_path / "a"), bundles.make(tmp_path / "b", run={"threads": 4})
    fake = Fake()
    with pytest.raises(BenchError, match="A runs with 1 threads and B with 4") as caught:
        run(a, b, fake)
    assert "--threads" in str(caught.value)
    run(a, b, fake, threads=2)
    assert fake.settings["threads"] == 2


def test_a_damaged_bundle_is_not_measured(tmp_path: Path) -> None:
    a, b = bundles.make(tmp_path / "a"), bundles.make(tmp_path / "b")
    (b / "model/m.int8.onnx").write_bytes(b"damaged")
    with pytest.raises(BundleError, match=r"m\.int8\.onnx is damaged"):
        run(a, b, Fake())
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match="not a bundle"):
        run(a, tmp_path / "empty", Fake())


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "m.onnx"
    text.write_text("no model")
    with pytest.raises(ModelError):
        run(text, bundles.model(tmp_path / "b.onnx", EYE), Fake())


def test_a_measurement_that_fails_has_its_exit_code(tmp_path: Path) -> None:
    a = bundles.model(tmp_path / "a.onnx", EYE)

    def fail(kind: type[runtime_bench.BenchFailure]) -> Any:
        def measure(*args: Any, **settings: Any) -> Json:
            raise kind("A: no process could measure it")

        return measure

    with pytest.raises(BenchError, match="no process"):
        run(a, a, fail(runtime_bench.BenchFailure))
    with pytest.raises(ToolchainError):
        run(a, a, fail(runtime_bench.RuntimeMissing))


def test_a_planted_slowdown_breaks_the_gate_and_none_holds_it(tmp_path: Path) -> None:
    a, b = bundles.make(tmp_path / "a"), bundles.make(tmp_path / "b")
    states = [run(a, b, Fake(f), limits=Limits(slowdown=0.05))["gates"][0]["state"] for f in (1.1, 1.05, 1.0)]
    assert states == ["broken", "undecided", "held"]


def spins(a: str, b: str) -> Any:
    """A measure of two busy loops in real processes, in place of the models."""

    def measure(subjects: Any, samples: Any, **settings: Any) -> Json:
        made = [runtime_bench.Subject(name=n, path=p, sha256="0" * 64, runner="null") for n, p in (("A", a), ("B", b))]
        return runtime_bench.measure(made, [], **{**settings, "effort": "quick", "seconds": 8.0, "memory": False})

    return measure


def test_real_processes_show_a_latency_a_hundredfold(tmp_path: Path) -> None:
    a = bundles.model(tmp_path / "a.onnx", EYE)
    request = Request(a=a, b=a, limits=Limits(slowdown=0.2))
    found = comparing.run(request, measure=spins("spin:200us", "spin:20ms"))
    assert found["verdict"] == "slower"
    assert found["gates"][0]["state"] == "broken"
    assert found["latency"]["median"]["pairs"] >= 3
    json.dumps(found, allow_nan=False)


# what bundles recorded


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path]:
    def of(factor: float, seed: int) -> Json:
        return measurement(
            *(subject(name, groups(f, seed=seed + i)) for i, (name, f) in enumerate((("float32", 2), ("int8", factor))))
        )

    return (
        bundles.make(tmp_path / "a", measurement=of(1, 1)),
        bundles.make(tmp_path / "b", measurement=of(1.2, 7)),
    )


def test_recorded_bundles_are_compared_by_their_default_artifacts(recorded: tuple[Path, Path]) -> None:
    a, b = recorded
    found = compared(a, b, recorded=True)
    assert (found["how"], found["verdict"]) == ("apart", "slower")
    assert (found["a"]["file"], found["a"]["precision"]) == ("int8.onnx", None)
    inside = compared(Path(f"{a}#float32"), a, recorded=True)
    assert (inside["how"], inside["verdict"]) == ("paired", "faster")
    with pytest.raises(BenchError, match='no subject "original"'):
        compared(Path(f"{a}#original"), b, recorded=True)


def test_a_measurement_file_makes_the_other_side_recorded_too(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = recorded
    file = tmp_path / "m.json"
    file.write_bytes((b / "measurements/build.json").read_bytes())
    assert compared(a, Path(f"{file}#int8"))["how"] == "apart"


def test_a_record_that_was_touched_is_refused(recorded: tuple[Path, Path]) -> None:
    a, b = recorded
    path = a / "measurements/build.json"
    path.write_text(path.read_text().replace("5", "6", 1))
    with pytest.raises(BundleError, match="damaged"):
        compared(a, b, recorded=True)


def test_a_bundle_without_a_measurement_has_nothing_recorded(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="holds no measurement"):
        compared(bundles.make(tmp_path / "c"), recorded[1], recorded=True)


def test_an_older_record_says_measure_again(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    old = bundles.make(tmp_path / "old", measurement={"schema": "edgeopt.measurement/1"})
    with pytest.raises(BenchError, match=r"old/measurements/build\.json was measured by an older version"):
        compared(old, recorded[1], recorded=True)
