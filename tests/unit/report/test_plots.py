from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.report import plots

from . import svg

WIDTHS = (920, 330)
MS = (1e6, "ms")


@given(st.floats(-1e4, 1e4), st.floats(1e-2, 1e6), st.integers(2, 12))
def test_ticks_are_round_and_inside(low: float, span: float, count: int) -> None:
    found = plots.ticks(low, low + span, count)
    assert len(found) <= count + 1
    gaps = {round((b - a) / (found[1] - found[0]), 6) for a, b in itertools.pairwise(found)}
    assert gaps <= {1.0}
    assert all(low - 1e-6 * span <= v <= low + span * (1 + 1e-6) for v in found)


def test_ticks_by_hand() -> None:
    assert plots.ticks(0, 20, 4) == [0, 5, 10, 15, 20]
    assert plots.ticks(0, 0, 4) == [0]


samples = st.lists(st.floats(0.001, 5000), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(samples, min_size=1, max_size=4), min_size=1, max_size=3), st.sampled_from(WIDTHS))
def test_strips_show_or_count_every_sample(groups: list[list[list[float]]], width: int) -> None:
    subjects = [
        plots.Strip(
            name=f"s{k}", css="low", rows=[(f"process {j + 1}", r) for j, r in enumerate(rows)], center=rows[0][0]
        )
        for k, rows in enumerate(groups)
    ]
    picture = plots.strips(subjects, width, MS)
    (chart,) = svg.charts(picture)
    shown = sum(path.get("d", "").count("M") for path in chart.iter("path"))
    counted = sum(int(n) for n in re.findall(r">(\d+) beyond", picture))
    distinct = sum(len(set(row)) for rows in groups for row in rows)
    total = sum(len(row) for rows in groups for row in rows)
    assert counted + shown <= total
    assert counted or shown >= min(1, distinct)
    assert not [f for f in svg.faults(chart) if "overlap" not in f]


@settings(max_examples=100, deadline=None)
@given(samples, st.sampled_from(WIDTHS))
def test_histogram_counts_every_sample_once(values: list[float], width: int) -> None:
    ordered = sorted(values)
    marks = [
        ("median", ordered[len(ordered) // 2]),
        ("p90", ordered[int(0.9 * (len(ordered) - 1))]),
        ("p95", ordered[-1]),
    ]
    picture = plots.histogram(values, marks, width, "low", MS)
    (chart,) = svg.charts(picture)
    assert not list(svg.faults(chart))
    tallest = max(float(r.get("height") or 0) for r in chart.iter("rect"))
    top = int(next(t.text for t in chart.iter("text") if t.get("class") == "end quiet") or 0)
    bars = sum(round(float(r.get("height") or 0) / tallest * top) for r in chart.iter("rect"))
    beyond = sum(int(n) for n in re.findall(r">(\d+) beyond", picture))
    assert bars + beyond == len(values)


def test_no_mark_line_crosses_a_label() -> None:
    found = plots._stairs([(100.0, "median 17.1"), (150.0, "p90 17.4"), (160.0, "p95 17.6"), (165.0, "p99 18.0")], 34)
    for x, _, _, _ in found:
        for other, row, side, label in found:
            wide = len(label) * plots.CHARACTER + 4
            low, high = (other - wide, other) if side == "end" else (other, other + wide)
            reaches = next(r for y, r, _, _ in found if y == x) <= row
            assert not (low < x < high and x != other and reaches), (x, label)


def test_bars_start_at_zero_and_are_proportional() -> None:
    rows = [
        plots.Bar(label="a", parts=[("low", 10, "")], end="10"),
        plots.Bar(label="b", parts=[("low", 2.5, "")], end="2.5"),
    ]
    (chart,) = svg.charts(plots.bars(rows, 920, "MB"))
    first, second = chart.iter("rect")
    assert first.get("x") == second.get("x")
    widths = [float(r.get("width") or 0) + 1 for r in (first, second)]
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.01)
    zero = next(t for t in chart.iter("text") if t.text == "0")
    assert float(zero.get("x") or 0) == pytest.approx(float(first.get("x") or 0), abs=0.1)


@pytest.mark.parametrize("width", WIDTHS)
def test_budget_line_and_labels_stay_apart(width: int) -> None:
    rows = [
        plots.Bar(label="float32", parts=[("model", 34.2, "34.2 MB"), ("runtime", 21.3, "21.3 MB")], end="55.5 MB"),
        plots.Bar(label="int8", parts=[("model", 12.9, "12.9 MB"), ("runtime", 21.3, "21.3 MB")], end="34.2 MB"),
    ]
    for limit in (1.0, 34.5, 36.0, 55.6, 80.0):
        (chart,) = svg.charts(plots.bars(rows, width, "MB", limit=(limit, f"budget {limit} MB")))
        assert not list(svg.faults(chart)), limit


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("at", [0, 1, 29, 30, 58, 59])
def test_timeline_marks_the_peak(width: int, at: int) -> None:
    values = [1.0] * 60
    values[at] = 6.6
    series = [
        plots.Steps(css="float", values=values, peak="6.60 MB at a/rather/long/name/of/a/node/in/a/graph"),
        plots.Steps(css="low", values=[v / 1.05 for v in values], peak="6.29 MB"),
    ]
    (chart,) = svg.charts(plots.timeline(series, width, "MB live", "60 nodes in execution order"))
    assert not list(svg.faults(chart))
    circle = next(chart.iter("circle"))
    left, right = 44, width - 12
    assert float(circle.get("cx") or 0) == pytest.approx(left + (at + 0.5) * (right - left) / 60, abs=0.1)


def test_labels_are_escaped() -> None:
    rows = [plots.Bar(label="<script>", parts=[("low", 1, "")], end="<b>")]
    picture = plots.bars(rows, 920, "MB")
    assert "<script>" not in picture
    assert "&lt;script&gt;" in picture


def test_the_checker_sees_planted_faults() -> None:
    (chart,) = svg.charts(
        '<svg viewBox="0 0 100 50"><text x="5" y="20">abc</text><text x="10" y="22">def</text>'
        '<text x="90" y="40">far too long</text><rect x="nan" y="1" width="3" height="4"/>'
        '<rect x="1.234" y="1" width="3" height="4"/></svg>'
    )
    found = " ".join(svg.faults(chart))
    for word in ("overlap", "cut off", "x=nan", "x=1.234"):
        assert word in found


@pytest.mark.parametrize("high", [1.3, 7.1, 42.0, 99.0, 430.0])
def test_a_narrow_axis_still_has_marks_to_read_a_value_from(high: float) -> None:
    chart = str(plots.strips([plots.Strip(name="a", css="low", rows=[("p", [high])], center=high)], 330, (1e6, "ms")))
    labels = chart[chart.index('class="axis"') :].count("mid quiet")
    assert 3 <= labels <= 8
