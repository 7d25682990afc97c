from __future__ import annotations

import json

import pytest

from edgeopt.memory import Footprint
from edgeopt.plan import Status, Step, StepResult, Wanted, ladder, next_step

COST = Footprint(weight_bytes=0, peak_activation_bytes=0, nodes=0)


def rewrites(*names: str) -> list[Step]:
    return [Step(kind="pass", name=name) for name in names]


def done(step: Step, status: Status) -> StepResult:
    return StepResult(
        step=step, status=status, reason="", before=COST, after=COST, drift=(), latency_ratio=None, seconds=0.0
    )


def walk(steps: tuple[Step, ...], fails: set[str]) -> list[str]:
    results: list[StepResult] = []
    while step := next_step(steps, results):
        results.append(done(step, "rolled-back" if step.name in fails else "kept"))
    return [r.step.name for r in results]


REFINEMENTS = [
    *("equalize", "smooth-quant", "bias-correction", "second-order-rounding", "weight-scales"),
    *("ranges-percentile", "ranges-mse", "ranges-kl", "empirical-bias", "mixed-precision"),
]


def test_safe_steps_first_and_int8_only_with_data() -> None:
    steps = ladder(rewrites("a", "b"), calibrated=True, wanted=Wanted(exclude=["z", "y"]), finishing=rewrites("c"))
    assert [s.name for s in steps] == ["a", "b", "quantize-int8", *REFINEMENTS, "dynamic-int8", "c"]
    assert steps[2].params["exclude"] == ["y", "z"]
    assert [s.name for s in ladder(rewrites("a", "b"), calibrated=False)] == ["a", "b"]


@pytest.mark.parametrize(
    ("asked", "calibrated", "first"),
    [
        ("static", True, "quantize-int8"),
        ("static", False, None),
        ("none", True, None),
        ("dynamic", True, "dynamic-int8"),
        ("weights-int8", False, "weights-int8"),
        ("weights-int4", True, "weights-int4"),
        ("float16", False, "float16"),
    ],
)
def test_what_is_asked_for_is_all_that_is_tried(asked: str, calibrated: bool, first: str | None) -> None:
    steps = ladder((), calibrated=calibrated, wanted=Wanted(quantize=asked))
    assert [s.name for s in steps][:1] == ([] if first is None else [first])
    assert "dynamic-int8" not in [s.name for s in steps[1:]]


def test_the_search_knows_its_limits() -> None:
    """A lock compares parameters, so what steers the search is among them."""
    wanted = Wanted(floors={"min_sqnr_db": 25.0}, max_float_macs=0.05, calib_memory=1000)
    steps = {s.name: s for s in ladder((), calibrated=True, wanted=wanted)}
    assert steps["mixed-precision"].params == {"floors": {"min_sqnr_db": 25.0}, "max_float_macs": 0.05}
    assert steps["quantize-int8"].params["calib_memory"] == 1000
    json.dumps([dict(s.params) for s in steps.values()])


def test_refinements_need_what_they_refine() -> None:
    steps = ladder(rewrites("a"), calibrated=True)
    every = ["a", "quantize-int8", *REFINEMENTS, "dynamic-int8"]
    assert walk(steps, set()) == every
    assert walk(steps, {"quantize-int8"}) == ["a", "quantize-int8", "dynamic-int8"]
    assert walk(steps, {"a", "bias-correction"}) == every
