"""B05: int8 that is 1.6 times slower than float is rolled back, from a measurement in which it is."""

from __future__ import annotations

import dataclasses
import re

import pytest

from edgeopt.pipeline import decide
from edgeopt.pipeline.measure import Measured
from tests.unit.pipeline.test_decide import judged, run
from tests.unit.report import recorded


def measured(slowdown: float, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Ten processes a model, int8 slower than float32 by a factor."""
    monkeypatch.setitem(recorded.MEDIANS_MS, "int8", slowdown * recorded.MEDIANS_MS["float32"])
    return Measured(record=recorded.measurement(processes=10, original=True))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timings on this machine speak for the target."""
    monkeypatch.setattr(decide, "comparable", lambda target: True)


def test_b05_int8_that_is_slower_is_rolled_back_and_the_first_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    final = run(judged(), measured(1.6, monkeypatch))
    assert final.default == "float32"
    assert final.reason_codes["quantize-int8"] == "slower"
    assert {r.step.name: r.status for r in final.results}["quantize-int8"] == "rolled-back"
    said = re.fullmatch(
        r"int8 was rolled back: slower than the fused float model .* \((1\.\d+)x, \S+ to \S+\)", final.warnings[0]
    )
    assert said is not None
    assert 1.55 < float(said[1]) < 1.65


def test_b05_int8_that_is_faster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    final = run(judged(), measured(0.6, monkeypatch))
    assert (final.default, final.warnings) == ("int8", ())


def test_what_was_asked_for_by_name_ships_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dataclasses.replace(judged(), asked="static")
    final = run(asked, measured(1.6, monkeypatch))
    assert final.default == "int8"
    assert "int8 is slower than the fused float model on the build host" in final.warnings[0]
