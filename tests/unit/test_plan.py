from __future__ import annotations

from edgeopt.memory import Footprint
from edgeopt.plan import Status, Step, StepResult, ladder, next_step

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


def test_safe_steps_first_and_int8_only_with_data() -> None:
    steps = ladder(rewrites("a", "b"), calibrated=True, exclude=["z", "y"])
    assert [s.name for s in steps] == ["a", "b", "quantize-int8", "bias-correction", "percentile-ranges"]
    assert steps[2].params["exclude"] == ["y", "z"]
    assert [s.name for s in ladder(rewrites("a", "b"), calibrated=False)] == ["a", "b"]


def test_refinements_need_what_they_refine() -> None:
    steps = ladder(rewrites("a"), calibrated=True)
    assert walk(steps, set()) == ["a", "quantize-int8", "bias-correction", "percentile-ranges"]
    assert walk(steps, {"quantize-int8"}) == ["a", "quantize-int8"]
    assert walk(steps, {"a", "bias-correction"}) == ["a", "quantize-int8", "bias-correction", "percentile-ranges"]
