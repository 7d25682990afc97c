"""Classes of processes on planted sequences, and how often one is said of plain noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from runtime_bench.statistics import phases

from . import simulate

Shape = Callable[[int], float]

SHAPES: list[tuple[str, Shape]] = [
    ("flat", lambda i: 0.0),
    ("flat", lambda i: 0.015 * (i > 60)),  # 1.5 %: not enough to be another level
    ("warmup", lambda i: 0.5 * math.exp(-i / 15)),
    ("warmup", lambda i: 0.2 * (i < 15)),
    ("warmup", lambda i: 0.3 * (i < 40) + 0.1 * (i < 80)),
    ("slowdown", lambda i: 0.1 * (i >= 80)),
    ("slowdown", lambda i: 0.3 * (i < 20) + 0.1 * (i >= 80)),
    ("cyclic", lambda i: 0.1 * (i // 25 % 2)),
    ("cyclic", lambda i: 0.05 * math.sin(i / 8)),
    ("no_steady_state", lambda i: 0.1 * (i >= 150)),
    ("no_steady_state", lambda i: -0.1 * (i >= 150)),
]


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=[f"{i} {name}" for i, (name, _) in enumerate(SHAPES)])
def test_planted_shapes(name: str, shape: Shape) -> None:
    """180 calls with noise of 1 %, the first 20 of them warm-up; the class is right in 39 of 40 at least."""
    rng = random.Random(3)
    right = 0
    for _ in range(40):
        values = [simulate.ns(shape(i) + rng.gauss(0, 0.01)) for i in range(180)]
        right += phases.process_class(values[:20], values[20:]) == name
    assert right >= 39


def test_a_short_warm_up_before_many_calls_is_seen() -> None:
    rng = random.Random(4)
    values = [simulate.ns(0.2 * (i < 25) + rng.gauss(0, 0.02)) for i in range(3000)]
    assert phases.process_class(values[:300], values[300:]) == "warmup"
    assert phases.process_class([], values[300:]) == "flat"
    late = [simulate.ns(0.1 * (i >= 2000) + rng.gauss(0, 0.02)) for i in range(3000)]
    assert phases.process_class([], late) == "slowdown"
    fast = [simulate.ns(0.1 * (i // 25 % 2) + rng.gauss(0, 0.01)) for i in range(3000)]
    assert phases.process_class([], fast) == "cyclic"


def test_a_short_disturbance_does_not_end_a_steady_state() -> None:
    """4 % of the calls are 10 % slower or faster; 10 % of them would be a state of their own."""
    rng = random.Random(6)

    def made(level: float, begin: int, length: int) -> list[int]:
        inside = range(begin, begin + length)
        return [simulate.ns((level if i in inside else 0.0) + rng.gauss(0, 0.01)) for i in range(3000)]

    assert phases.process_class([], made(0.1, 2500, 120)) == "flat"
    assert phases.process_class([], made(-0.1, 100, 120)) == "flat"
    assert phases.process_class([], made(0.1, 2500, 300)) == "no_steady_state"
    assert phases.process_class([], made(-0.1, 100, 300)) == "slowdown"


def test_classes_of_little() -> None:
    assert phases.process_class([], []) == "flat"
    assert phases.process_class([900], [5]) == "flat"
    assert phases.process_class([], [7] * 100) == "flat"
    assert phases.process_class([200] * 50, [100] * 100) == "warmup"
    assert {name for name, _ in SHAPES} == set(phases.CLASSES)


@pytest.mark.parametrize(
    ("generator", "most"),
    [(simulate.IID, 1), (simulate.PROCESS, 1), (simulate.SPIKES, 2), (simulate.MODES, 2), (simulate.AR1, 16)],
    ids=lambda value: getattr(value, "name", value),
)
def test_noise_is_flat(generator: simulate.Generator, most: int) -> None:
    """Of 200 processes of 150 calls at most so many are called anything else: 0.5 % of independent calls."""
    rng = random.Random(5)
    classes = [phases.process_class(values[:20], values[20:]) for values in generator.make(rng, 200, 150)]
    assert sum(name != "flat" for name in classes) <= most


def test_the_step_of_the_generator_is_a_slowdown() -> None:
    classes = [phases.process_class([], values) for values in simulate.step(random.Random(6), 50, 150)]
    assert classes.count("slowdown") >= 49
