"""Decisions from results alone: no model is built here, figures are made up and the outcome is asserted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgeopt.backends import Artifact
from edgeopt.bundle import Lock
from edgeopt.errors import BudgetError, QualityError
from edgeopt.memory import Footprint
from edgeopt.pipeline import decide
from edgeopt.pipeline.decide import Judged, choose
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.steps import Outcome
from edgeopt.plan import Step, StepResult
from edgeopt.target import Budget, load_target

SIZE = {"float32": 4000, "int8": 1000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures(Measured):
    """A measurement that says what a test wants."""

    record: Any = None
    latency: tuple[float, float, float] | None = None
    rewritten: tuple[float, float, float] | None = None
    peaks: dict[str, int | None] = dataclasses.field(default_factory=lambda: {"float32": 90_000, "int8": 50_000})
    milliseconds: dict[str, float | None] = dataclasses.field(default_factory=lambda: {"float32": 10.0, "int8": 5.0})

    def ratio(self, a: str, b: str) -> tuple[float, float, float] | None:
        return {("float32", "int8"): self.latency, ("original", "float32"): self.rewritten}[a, b]

    def verdict(self, a: str, b: str) -> str | None:
        ratio = self.ratio(a, b)
        return None if ratio is None else "slower" if ratio[1] > 1.05 else "inconclusive"

    def peak_bytes(self, name: str) -> int | None:
        return self.peaks[name]

    def latency_ms(self, name: str, percentile: float) -> float | None:
        return self.milliseconds[name]


def result(kind: str, name: str, status: str = "kept") -> StepResult:
    cost = Footprint(weight_bytes=1, peak_activation_bytes=1, nodes=1)
    return StepResult(
        step=Step(kind=kind, name=name),
        status=cast(Any, status),
        reason="as it was",
        before=cost,
        after=cost,
        drift=(),
        latency_ratio=None,
        seconds=0.0,
    )


def judged(
    default: str = "int8", refused: str | None = None, precisions: tuple[str, ...] = ("float32", "int8")
) -> Judged:
    artifacts = {
        p: Artifact(path=Path(p), format="onnx", precision=p, bytes=SIZE[p], sha256="", toolchain={})
        for p in precisions
    }
    results = (
        result("pass", "fold-pad"),
        result("quantize", "quantize-int8"),
        result("quantize", "bias-correction"),
        result("quantize", "percentile-ranges", "rolled-back"),
    )
    outcome = Outcome(
        original=cast(Any, SimpleNamespace(nodes=tuple)),
        rewritten=cast(Any, None),
        float_model=cast(Any, None),
        quantized=None,
        results=results,
        artifacts=artifacts,
    )
    return Judged(outcome=outcome, default=default, quality={}, full=True, fused={}, refused=refused)


LOCK = Lock(source_sha256="", target="", toolchain=decide.toolchain(), decisions=())


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings on this machine speak for the target."""
    monkeypatch.setattr(decide, "comparable", lambda target: True)


def run(what: Judged, figures: Figures, budget: Budget | None = None, lock: Lock | None = None) -> decide.Final:
    return choose(what, figures, load_target("raspberry-pi-5"), budget or Budget(), lock)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("latency", "default"),
    [
        ((1.3, 1.1, 1.5), "float32"),
        ((1.04, 1.02, 1.06), "int8"),
        ((1.3, 0.9, 1.9), "int8"),
        ((0.5, 0.4, 0.6), "int8"),
        (None, "int8"),
    ],
)
def test_a_timing_vetoes_only_with_its_whole_interval(latency: tuple[float, float, float] | None, default: str) -> None:
    final = run(judged(), Figures(latency=latency))
    assert final.default == default
    status = {r.step.name: r.status for r in final.results}
    assert status["quantize-int8"] == status["bias-correction"] == ("kept" if default == "int8" else "rolled-back")
    assert status["fold-pad"] == "kept"
    assert final.reason_codes == ({} if default == "int8" else {"quantize-int8": "slower", "bias-correction": "slower"})
    assert any("slower" in w for w in final.warnings) == (latency is not None and latency[1] > 1)


def test_a_timing_of_another_processor_or_under_a_lock_vetoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Figures(latency=(2.0, 1.9, 2.1))
    monkeypatch.setattr(decide, "comparable", lambda target: False)
    assert run(judged(), slow).default == "int8"
    monkeypatch.setattr(decide, "comparable", lambda target: True)
    assert run(judged(), slow, lock=LOCK).default == "int8"
    assert run(judged(), slow).default == "float32"


@pytest.mark.usefixtures("here")
def test_a_budget_that_needs_int8_overrules_the_veto() -> None:
    final = run(judged(), Figures(latency=(2.0, 1.9, 2.1)), Budget(artifact_bytes=2000))
    assert final.default == "int8"
    assert [(c.name, c.measured, c.ok) for c in final.checks] == [("size", 1000, True)]


@pytest.mark.parametrize(("rewritten", "said"), [((1.2, 1.1, 1.3), True), ((1.2, 0.9, 1.3), False), (None, False)])
@pytest.mark.usefixtures("here")
def test_rewrites_that_made_the_network_slower_are_told(
    rewritten: tuple[float, float, float] | None, said: bool
) -> None:
    warnings = run(judged(), Figures(rewritten=rewritten)).warnings
    assert any("slower than the original here (1.20x" in text for text in warnings) == said


def test_int8_that_is_not_smaller_does_not_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZE, "int8", 4000)
    final = run(judged(), Figures(latency=(0.5, 0.4, 0.6)))
    assert final.default == "float32"
    assert final.reason_codes["quantize-int8"] == "size"


def test_a_latency_budget_that_only_float_meets() -> None:
    figures = Figures(milliseconds={"float32": 4.0, "int8": 9.0})
    final = run(judged(), figures, Budget(latency_ms=5.0))
    assert final.default == "float32"
    assert final.reason_codes["quantize-int8"] == "budget"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(artifact_bytes=400), r"smallest size reached is 1,000 bytes of artifact \(int8\).*400: 600 too many"),
        (
            Budget(peak_bytes=20_000),
            r"smallest memory reached is 50,000 bytes of peak memory \(int8\).*30,000 too many",
        ),
        (Budget(latency_ms=1.0), r"smallest p95 reached is 5 ms \(int8\)"),
    ],
)
def test_shortfalls(budget: Budget, words: str) -> None:
    with pytest.raises(BudgetError, match=words):
        run(judged(), Figures(), budget)


def test_a_figure_that_is_missing_holds_no_budget() -> None:
    with pytest.raises(BudgetError, match="could not be measured"):
        run(judged(), Figures(peaks={"float32": None, "int8": None}), Budget(peak_bytes=10**9))


def test_refused_quality_ships_float_or_says_that_the_budget_needs_int8() -> None:
    bad = judged(default="float32", refused="top1 falls")
    final = run(bad, Figures())
    assert final.default == "float32"
    assert final.reason_codes == {"quantize-int8": "quality", "bias-correction": "quality"}
    assert final.warnings[0] == "int8 was rolled back: top1 falls"
    with pytest.raises(QualityError, match="budget needs int8"):
        run(bad, Figures(), Budget(artifact_bytes=2000))
    with pytest.raises(BudgetError):
        run(bad, Figures(), Budget(artifact_bytes=200))


def test_nothing_to_quantize() -> None:
    final = run(judged(default="float32", precisions=("float32",)), Figures())
    assert (final.default, final.warnings, final.reason_codes) == ("float32", (), {})


def test_a_replay_with_other_tools_says_so() -> None:
    lock = dataclasses.replace(LOCK, toolchain={**LOCK.toolchain, "numpy": "1.0"})
    assert any("numpy 1.0 ->" in w for w in run(judged(), Figures(), lock=lock).warnings)
