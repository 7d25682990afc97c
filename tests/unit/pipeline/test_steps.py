from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt import loaders, passes
from edgeopt.backends import onnxruntime
from edgeopt.model import Model
from edgeopt.passes import Pass
from edgeopt.pipeline import data, steps
from edgeopt.pipeline.steps import _judge_choice
from edgeopt.plan import Drift, StepResult, ladder
from edgeopt.quality import Agreement, Quality
from edgeopt.target import load_target


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
    reason, kept = _judge_choice(after, before, 0.1)
    assert kept == better
    assert words in reason


def net() -> Model:
    source = Path(__file__).parents[3] / "calibration" / "fashion-mnist.onnx"
    return loaders.load(source)


def walk(monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[ir.Model], int]) -> StepResult:
    """Run the ladder with one rewrite only."""
    planted = Pass(name="planted", rewrite=rewrite, tolerance=1e-5)
    monkeypatch.setattr(passes, "NORMALIZE", (planted,))
    monkeypatch.setattr(passes, "FUSIONS", ())
    model = net()
    sets = data.prepare(model, calib=None, evaluate=None)
    target = load_target("raspberry-pi-5")
    plan = ladder(["planted"], calibrated=False)
    outcome = steps.run(
        plan, model, target, onnxruntime, sets, exclude=frozenset(), lock=None, stage=lambda t: contextlib.nullcontext()
    )
    kept = outcome.results[0].status == "kept"
    assert (outcome.float_model is model) != kept
    return outcome.results[0]


def test_a_rewrite_that_changes_values_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def scale_a_weight(model: ir.Model) -> int:
        name, value = next((n, v) for n, v in model.graph.initializers.items() if v.const_value.size > 100)  # type: ignore[union-attr]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.001), name=name)  # type: ignore[union-attr]
        return 1

    result = walk(monkeypatch, scale_a_weight)
    assert result.status == "rolled-back"
    assert "outputs changed by" in result.reason


def test_a_rewrite_that_breaks_the_model_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_it(model: ir.Model) -> int:
        next(iter(model.graph)).op_type = "NoSuchOperator"
        return 1

    result = walk(monkeypatch, break_it)
    assert result.status == "rolled-back"
    assert "does not load" in result.reason


def test_a_rewrite_that_keeps_values_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(model: ir.Model) -> int:
        model.graph.name = "renamed"
        return 1

    assert walk(monkeypatch, rename).status == "kept"
