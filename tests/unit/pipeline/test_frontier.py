"""The frontier, the choice by an objective and the words for a shortfall, from made-up figures."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.pipeline import frontier
from edgeopt.pipeline.frontier import Point
from edgeopt.pipeline.limits import Check
from edgeopt.target import Budget


def check(name: str, limit: float, measured: float) -> Check:
    return Check(name=name, limit=limit, measured=measured, ok=measured <= limit)


def point(
    precision: str = "int8",
    *,
    size: int = 1000,
    memory: int | None = 50_000_000,
    ms: float | None = 5.0,
    loss: float = 0.0,
    refused: str | None = None,
    checks: tuple[Check, ...] = (),
    backend: str = "onnxruntime",
    runtime: int = 40_000_000,
) -> Point:
    return Point(
        candidate=f"{backend} auto",
        backend=backend,
        precision=precision,
        bytes=size,
        memory=memory,
        runtime=runtime,
        predicted=None,
        median_ms=ms,
        load_ms=None,
        loss=loss,
        sqnr_db=40.0,
        refused=refused,
        checks=checks,
    )


FIGURES = st.builds(
    point,
    size=st.integers(1, 5),
    memory=st.one_of(st.none(), st.integers(1, 5)),
    ms=st.floats(1, 5),
    loss=st.sampled_from([0.0, 0.1, 0.2]),
    refused=st.sampled_from([None, None, "bad"]),
)


@given(st.lists(FIGURES, max_size=6))
def test_the_frontier_is_what_nothing_dominates(points: list[Point]) -> None:
    found = frontier.frontier(points)
    held = [p for p in points if p.refused is None]
    assert all(p in held for p in found)
    known = [p for p in held if p.memory is not None]
    for a, b in itertools.product(found, known):
        x, y = list(a.figures.values()), list(b.figures.values())
        if a.memory is not None:
            assert not (all(v <= u for u, v in zip(x, y)) and x != y)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("objective", "best"), [("size", "int4"), ("memory", "int8"), ("latency", "float16"), ("quality", "float32")]
)
def test_an_objective_picks_its_figure(objective: str, best: str) -> None:
    points = [
        point("float32", size=4000, memory=90_000_000, ms=9.0),
        point("float16", size=2000, memory=70_000_000, ms=3.0, loss=0.001),
        point("int8", size=1000, memory=50_000_000, ms=5.0, loss=0.01),
        point("int4", size=500, memory=80_000_000, ms=8.0, loss=0.02),
        point("bad", size=1, memory=1, ms=0.1, refused="wrong answers"),
        point("over", size=1, memory=1, ms=0.1, checks=(check("size", 0.5, 1),)),
    ]
    found = frontier.best(points, objective)
    assert found is not None
    assert found.precision == best


def test_figures_that_are_as_good_are_decided_by_quality() -> None:
    near = [point("a", memory=50_000_000, loss=0.02), point("b", memory=50_400_000, loss=0.0)]
    found = frontier.best(near, "memory")
    assert found is not None
    assert found.precision == "b"
    far = [near[0], point("b", memory=52_000_000)]
    found = frontier.best(far, "memory")
    assert found is not None
    assert found.precision == "a"


def test_nothing_is_picked_without_its_figure() -> None:
    assert frontier.best([point(memory=None)], "memory") is None
    assert frontier.best([], "size") is None


def test_a_shortfall_names_the_best_of_each_line_and_the_nearest_to_all() -> None:
    limits = {"memory": 30_000_000, "size": 400}

    def with_lines(precision: str, memory: int, size: int, refused: str | None = None) -> Point:
        lines = (check("memory", limits["memory"], memory), check("size", limits["size"], size))
        return point(precision, memory=memory, size=size, refused=refused, checks=lines, runtime=20_000_000)

    points = [
        with_lines("float32", 60_000_000, 4000),
        with_lines("int8", 50_000_000, 1000),
        with_lines("int4", 55_000_000, 500),
        with_lines("lost", 20_000_000, 450, "top1 falls"),
    ]
    text = frontier.shortfall(points)
    assert "smallest memory reached is 50,000,000 bytes of peak memory (int8)" in text
    assert "20,000,000 too many" in text
    assert "smallest size reached is 500 bytes of artifact (int4)" in text
    assert text.endswith("the nearest to all of it is int4")
    told = frontier.helps(points, Budget(peak_bytes=30_000_000, artifact_bytes=400), ["Try X."])
    assert "memory=55MB,size=500B" in told
    assert "lost comes nearer (size 450 bytes of artifact) and is refused: top1 falls." in told
    assert told.endswith("Try X.")


def test_a_budget_below_the_runtime_is_told_as_that() -> None:
    lines = (check("memory", 1_000_000, 50_000_000),)
    points = [point(checks=lines), point(checks=lines, backend="openvino", runtime=60_000_000)]
    told = frontier.helps(points, Budget(peak_bytes=1_000_000), [])
    assert told.startswith("No network fits: the runtime alone takes 40.0 MB (onnxruntime)")


def test_the_section_has_no_numbers_that_json_lacks() -> None:
    import dataclasses
    import json

    points = [dataclasses.replace(point(), sqnr_db=value) for value in (math.inf, -math.inf)]
    found = frontier.section(points, points[0], "size")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [p["sqnr_db"] for p in found["points"]] == [None, "-inf"]
    assert [p["chosen"] for p in found["points"]] == [True, False]


def test_run_options_are_named() -> None:
    import dataclasses

    found = dataclasses.replace(point(), kept=("mapped-weights",))
    assert frontier.label(found, [found]) == "int8 with mapped-weights"
    assert frontier.said(found).startswith("int8 with mapped-weights: 1.00 kB")
    assert frontier.section([found], found, None)["points"][0]["kept"] == ["mapped-weights"]
