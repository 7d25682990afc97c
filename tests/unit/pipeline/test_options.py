"""Run options one at a time: what is kept, what is not, what a lock replays. The figures are planted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgeopt.backends import Artifact, RunOption
from edgeopt.backends import onnxruntime as backend
from edgeopt.bundle import Lock, decisions
from edgeopt.errors import BundleError
from edgeopt.loaders import load
from edgeopt.pipeline import options
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.steps import Outcome
from edgeopt.target import load_target
from tests.unit.findings import nets

TARGET = load_target("x86-avx512-vnni")
Ratio = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Planted(Measured):
    """Figures of ``before`` and ``after`` that a test states."""

    record: Mapping[str, Any] | None = None
    bytes: tuple[int | None, int | None] = (0, 0)
    slow: Ratio = (1.0, 0.99, 1.01)

    def peak_bytes(self, name: str) -> int | None:
        return self.bytes[("before", "after").index(name)]

    def ratio(self, a: str, b: str) -> Ratio | None:
        return self.slow


class Looks:
    """Measures by the options that an artifact has: bytes by how many they are."""

    def __init__(self, *steps: int, slow: Ratio = (1.0, 0.99, 1.01)) -> None:
        self.steps, self.slow, self.calls = steps, slow, 0

    def __call__(self, artifacts: Mapping[str, Artifact], samples: Sequence[Mapping[str, str]]) -> Measured:
        assert all(Path(path).is_file() for row in samples for path in row.values())
        self.calls += 1
        found = [self.steps[len(a.options)] for a in artifacts.values()]
        return Planted(bytes=(found[0], found[-1]), slow=self.slow)


def start(folder: Path) -> tuple[Outcome, Sets]:
    weights = {"w": np.arange(16, dtype=np.float32).reshape(4, 4)}
    proto = nets.proto(
        [nets.node("MatMul", ["x", "w"], ["y"])], [nets.value("x", [1, 4])], [nets.value("y", [1, 4])], weights
    )
    model = load(nets.write(folder / "net.onnx", proto))
    artifact = backend.lower(model, TARGET, folder / "net.float32.onnx", precision="float32")
    outcome = Outcome(
        original=model, rewritten=model, float_model=model, quantized=None, results=(), artifacts={"float32": artifact}
    )
    sets = Sets(
        inputs=model.inputs,
        calibration=None,
        evaluation=None,
        held_out=False,
        probes=({"x": np.ones((1, 4), np.float32)},),
        probes_are_real=False,
        warnings=(),
    )
    return outcome, sets


def switches(*names: str, make: Any = None) -> Any:
    """A backend with options of the runner by these names."""

    def option(name: str, key: str, value: str) -> RunOption:
        def add(artifact: Artifact, feeds: Any, out: Path) -> Artifact:
            return dataclasses.replace(artifact, options={**artifact.options, key: value})

        return RunOption(name=name, why="a test", options={key: value}, make=make or add)

    keys = {"arena": "off", "memory_pattern": "off", "prepacking": "off"}
    found = tuple(option(f"no-{name}", name, keys[name]) for name in names)
    return SimpleNamespace(NAME="fake", run_options=lambda target: found)


def tried(folder: Path, chosen: Any, look: Looks, **more: Any) -> tuple[Outcome, list[tuple[str, str]]]:
    outcome, sets = start(folder)
    steps = options.option_steps(TARGET, chosen)
    after = options.apply(outcome, steps, chosen, TARGET, sets, folder / "work", look=look, **more)
    return after, [(r.status, r.reason) for r in after.results]


def test_each_option_is_kept_for_what_it_saves_beyond_those_before(tmp_path: Path) -> None:
    outcome, rows = tried(tmp_path, switches("arena", "memory_pattern"), Looks(9_000_000, 8_000_000, 7_950_000))
    assert [status for status, _ in rows] == ["kept", "rolled-back"]
    assert rows[0][1].startswith("float32: 9,000,000 to 8,000,000 bytes of runtime and model, latency 1.00x")
    assert "it saves too little: 8,000,000 to 7,950,000" in rows[1][1]
    assert outcome.artifacts["float32"].options == {"arena": "off"}
    assert outcome.results[0].latency_ratio == (1.0, 0.99, 1.01)
    assert (outcome.results[0].found, outcome.results[1].found) == ({"kept": ["float32"]}, {})


def test_an_option_that_is_much_slower_is_rolled_back(tmp_path: Path) -> None:
    outcome, rows = tried(tmp_path, switches("arena"), Looks(9_000_000, 5_000_000, slow=(2.5, 2.1, 3.0)))
    assert rows[0][0] == "rolled-back"
    assert "more than 2 times as slow" in rows[0][1]
    assert outcome.artifacts["float32"].options == {}


def test_what_fits_is_left_alone_and_measured_once(tmp_path: Path) -> None:
    look = Looks(9_000_000, 6_000_000, 1)
    outcome, rows = tried(tmp_path, switches("arena", "memory_pattern"), look, enough=6_000_000)
    assert [status for status, _ in rows] == ["kept", "skipped"]
    assert rows[1][1] == "float32: 6,000,000 bytes of runtime and model are within the budget"
    assert look.calls == 2
    assert outcome.artifacts["float32"].options == {"arena": "off"}


def test_a_peak_that_was_seen_over_the_budget_counts_though_it_is_below_now(tmp_path: Path) -> None:
    look = Looks(5_900_000, 5_000_000)
    outcome, rows = tried(tmp_path, switches("arena"), look, enough=6_000_000, known={"float32": 6_500_000})
    assert [status for status, _ in rows] == ["kept"]
    assert outcome.artifacts["float32"].options == {"arena": "off"}
    (tmp_path / "again").mkdir()
    _, rows = tried(tmp_path / "again", switches("arena"), Looks(5_900_000, 5_000_000), enough=6_000_000)
    assert [status for status, _ in rows] == ["skipped"]


def test_an_option_that_moves_an_output_is_never_measured(tmp_path: Path) -> None:
    """The planted error: another file under the option's name, whose weights are a thousandth larger."""

    def wrong(artifact: Artifact, feeds: Any, out: Path) -> Artifact:
        import onnx
        from onnx import numpy_helper

        proto = onnx.load(artifact.path)
        weight = proto.graph.initializer[0]
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.001), weight.name))
        onnx.save(proto, out)
        return dataclasses.replace(artifact, path=out)

    look = Looks(9_000_000, 1)
    outcome, rows = tried(tmp_path, switches("arena", make=wrong), look)
    assert rows[0][0] == "rolled-back"
    assert "its outputs move by 0.001" in rows[0][1]
    assert look.calls == 0
    assert outcome.artifacts["float32"].path.parent == tmp_path


def test_why_an_option_is_not_for_an_artifact_is_told(tmp_path: Path) -> None:
    _, rows = tried(tmp_path, switches("arena", make=lambda *_: "no weights to map"), Looks(1, 1))
    assert rows == [("skipped", "float32: no weights to map")]


def locked(outcome: Outcome) -> Lock:
    return Lock(source_sha256="", target="", toolchain={}, decisions=decisions(outcome.results))


def test_a_lock_replays_what_was_kept_and_measures_nothing(tmp_path: Path) -> None:
    chosen = switches("arena", "memory_pattern")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, rows = tried(tmp_path / "a", chosen, Looks(9_000_000, 8_000_000, 7_950_000))
    look = Looks()
    again, replayed = tried(tmp_path / "b", chosen, look, lock=locked(first))
    assert [status for status, _ in replayed] == [status for status, _ in rows]
    assert again.artifacts["float32"].options == first.artifacts["float32"].options
    assert look.calls == 0
    assert decisions(again.results) == decisions(first.results)


def test_a_lock_that_kept_what_cannot_be_done_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, _ = tried(tmp_path / "a", switches("arena"), Looks(9_000_000, 8_000_000))
    unable = cast(Any, switches("arena", make=lambda *_: "not here"))
    with pytest.raises(BundleError, match="the lock has no-arena as kept, and here it is skipped: float32: not here"):
        tried(tmp_path / "b", unable, Looks(1, 1), lock=locked(first))


def test_a_backend_without_options_has_no_steps(tmp_path: Path) -> None:
    outcome, rows = tried(tmp_path, SimpleNamespace(NAME="none"), Looks(1))
    assert rows == []
    assert outcome.artifacts["float32"].options == {}
