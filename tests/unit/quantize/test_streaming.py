"""Statistics in as many passes as a budget asks for: the same to the bit, and nothing too large held at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import helper

from edgeopt.errors import CalibrationError
from edgeopt.model import Model
from edgeopt.quantize import streaming
from edgeopt.quantize.ranges import Statistics
from edgeopt.quantize.statistics import HELD, collect

from . import nets
from .test_ranges import same

Feeds = dict[str, np.ndarray]
RNG = np.random.default_rng(4)


def chain(length: int = 6, width: int = 16) -> Model:
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    nodes = [
        helper.make_node("MatMul" if i % 2 else "Gelu", [a, f"w{i}"] if i % 2 else [a], [b], name=f"n{i}")
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    arrays = {f"w{i}": nets.normal(i, width, width, fan=width) for i in range(1, length, 2)}
    return nets.make(nodes, [("x", ["N", "S", width])], [("y", ["N", "S", width])], arrays, opset=20)


def feeds(*shapes: tuple[int, int]) -> list[Feeds]:
    return [{"x": RNG.standard_normal((n, s, 16)).astype(np.float32)} for n, s in shapes]


class Counted:
    """A set that counts how often it was started, and what the interpreter gave at once."""

    def __init__(self, data: list[Feeds], monkeypatch: pytest.MonkeyPatch) -> None:
        self.data, self.passes, self.most = data, 0, 0
        run = streaming.Interpreter.run

        def watched(interpreter: streaming.Interpreter, given: Feeds) -> dict[str, np.ndarray]:
            found = run(interpreter, given)
            self.most = max(self.most, sum(value.nbytes for value in found.values()))
            return found

        monkeypatch.setattr(streaming.Interpreter, "run", watched)

    def __call__(self) -> Iterator[Feeds]:
        self.passes += 1
        return iter(self.data)


def gathered(model: Model, samples: streaming.Samples, budget: int | None) -> dict[str, Statistics]:
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    return collect(model, values, {str(v.name): -1 for v in values}, samples, budget=budget)


@pytest.mark.parametrize("tensors", [1, 2, 3])
def test_statistics_within_a_budget_are_those_of_one_pass(tensors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = chain(), feeds((1, 2000), (2, 1000), (1, 17))
    size = 2000 * 16 * 4
    whole = gathered(model, data, None)
    counted = Counted(data, monkeypatch)
    budget = tensors * size + len(whole) * HELD
    found = gathered(model, counted, budget)
    assert list(found) == list(whole)
    for name, statistics in whole.items():
        same(statistics, found[name])
    assert counted.passes > 2
    assert counted.most <= (tensors + 1) * size


def test_a_budget_for_everything_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(feeds((1, 50), (1, 50)), monkeypatch)
    gathered(chain(), counted, 64_000_000)
    assert counted.passes == 2  # the first sample tells the sizes


def test_a_sample_larger_than_the_first_splits_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = chain(), feeds((1, 4), (1, 4), (1, 4000), (1, 4))
    whole = gathered(model, data, None)
    counted = Counted(data, monkeypatch)
    found = gathered(model, counted, 7 * HELD + 2 * 4000 * 16 * 4)
    assert counted.passes > 3
    for name, statistics in whole.items():
        same(statistics, found[name])


def test_a_tensor_over_the_budget_is_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = chain(), feeds((1, 2000))
    counted = Counted(data, monkeypatch)
    found = gathered(model, counted, 1000)
    assert counted.most == 2000 * 16 * 4
    for name, statistics in gathered(model, data, None).items():
        same(statistics, found[name])


def test_several_passes_need_samples_that_start_anew() -> None:
    model, data = chain(), feeds((1, 2000))
    same(gathered(model, iter(data), None)["y"], gathered(model, data, None)["y"])
    with pytest.raises(TypeError, match="starts anew"):
        gathered(model, iter(data), 1000)


@pytest.mark.parametrize("budget", [None, 1000])
def test_no_samples(budget: int | None) -> None:
    with pytest.raises(CalibrationError, match="empty"):
        gathered(chain(), list[Feeds], budget)


def test_q07_a_tensor_that_overflows_is_named_with_its_sample() -> None:
    data = feeds((1, 4), (1, 4))
    data[1]["x"] = np.full_like(data[1]["x"], 3e38)
    with pytest.raises(CalibrationError, match="calibration sample 1: tensor .* holds NaN or infinity"):
        gathered(chain(), data, None)
