from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt import loaders
from edgeopt.backends import onnxruntime
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.passes import Pass
from edgeopt.pipeline import data, search, steps
from edgeopt.pipeline.quantizing import judge_choice
from edgeopt.plan import Drift, StepResult, ladder
from edgeopt.quality import Agreement, Quality
from edgeopt.target import load_target
from tests.unit.findings import nets


def seen(decibels: float, top1: float | None = None) -> Quality:
    drift = Drift(output="y", sqnr_db=decibels, cosine=1.0, max_abs=0.0)
    agreement = None if top1 is None else Agreement(top1=top1, ties=0.0)
    return Quality(samples=100, outputs=(drift,), slices=(), agreement=agreement, metric=None, finite=True)


@pytest.mark.parametrize(
    ("before", "after", "better", "words"),
    [
        (None, seen(20), True, "SQNR 20.0 dB on 100"),
        (seen(20), seen(20.05), False, "less than 0.1 dB"),
        (seen(20), seen(21), True, "+1.00 dB"),
        (seen(20, 0.98), seen(21, 0.97), True, "agreement 97.0%"),
        (seen(20, 0.98), seen(21, 0.95), False, "agreement was 98.0%"),
    ],
)
def test_a_refinement_must_gain_and_not_cost_agreement(
    before: Quality | None, after: Quality, better: bool, words: str
) -> None:
    reason, kept = judge_choice(after, before, 0.1)
    assert kept == better
    assert words in reason


def net() -> Model:
    source = Path(__file__).parents[3] / "calibration" / "fashion-mnist.onnx"
    return loaders.load(source)


def walk(rewrite: Callable[[ir.Model], int]) -> StepResult:
    """Run the ladder with one rewrite only."""
    planted = Pass(name="planted", rewrite=rewrite, tolerance=1e-5)
    model = net()
    sets = data.prepare(model, calib=None, evaluate=None)
    target = load_target("raspberry-pi-5")
    plan = ladder(steps.steps_of("pass", (planted,)), calibrated=False)
    outcome = steps.run(
        plan,
        (planted,),
        model,
        target,
        onnxruntime,
        sets,
        exclude=frozenset(),
        lock=None,
        stage=lambda t: contextlib.nullcontext(),
    )
    kept = outcome.results[0].status == "kept"
    assert (outcome.float_model is model) != kept
    return outcome.results[0]


def test_a_rewrite_that_changes_values_is_rolled_back() -> None:
    def scale_a_weight(model: ir.Model) -> int:
        name, value = next((n, v) for n, v in model.graph.initializers.items() if v.const_value.size > 100)  # type: ignore[union-attr]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.001), name=name)  # type: ignore[union-attr]
        return 1

    result = walk(scale_a_weight)
    assert result.status == "rolled-back"
    assert "outputs changed by" in result.reason


def test_a_rewrite_that_breaks_the_model_is_rolled_back() -> None:
    def break_it(model: ir.Model) -> int:
        next(iter(model.graph)).op_type = "NoSuchOperator"
        return 1

    result = walk(break_it)
    assert result.status == "rolled-back"
    assert "does not load" in result.reason


def test_a_rewrite_that_keeps_values_is_kept() -> None:
    def rename(model: ir.Model) -> int:
        model.graph.name = "renamed"
        return 1

    assert walk(rename).status == "kept"


def test_the_float_model_runs_once_on_a_choice_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three quantizer choices on five samples; what has no room is run again, with the same outputs."""
    model = nets.load(tmp_path, nets.fixed_batch([0, 4, 36]))
    feeds = [{"x": np.random.default_rng(i).normal(size=(1, 3, 6, 6)).astype(np.float32)} for i in range(5)]
    expected = [Interpreter(model).run(f)["y"] for f in feeds]
    size = expected[0].nbytes
    for room, runs in ((10 * size, 5), (2 * size, 5 + 3 + 3), (0, 15)):
        monkeypatch.setattr(search, "REMEMBERED", room)
        seen = []
        run = Interpreter.run
        monkeypatch.setattr(Interpreter, "run", lambda self, f, run=run, seen=seen: seen.append(1) or run(self, f))
        start = search.remembered(model)
        for _ in range(3):
            reference = start()
            for feed, wanted in zip(feeds, expected):
                np.testing.assert_array_equal(reference(feed)["y"], wanted)
        assert len(seen) == runs
        monkeypatch.setattr(Interpreter, "run", run)


def test_states_are_computed_once_for_every_pass_over_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nets.load(tmp_path, nets.fixed_batch([0, 4, 36]))
    feeds = [{"x": np.full((1, 3, 6, 6), i, np.float32)} for i in range(3)]
    expected = [Interpreter(model).run(f)["y"] for f in feeds]
    seen = []
    original = Interpreter.run
    monkeypatch.setattr(Interpreter, "run", lambda self, f: seen.append(1) or original(self, f))
    for room, runs in ((1_000_000, 3), (0, 6)):
        seen.clear()
        monkeypatch.setattr(data, "REMEMBERED", room)
        run = data._lazily(model)
        for _ in range(2):
            for feed, wanted in zip(feeds, expected):
                np.testing.assert_array_equal(run(feed)["y"], wanted)
        assert len(seen) == runs
