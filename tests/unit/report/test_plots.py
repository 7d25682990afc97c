from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.report import plots
from edgeopt.report.plots.svg import CHARACTER

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


def marks_of(values: list[float], wide: float = 0.03) -> list[plots.Mark]:
    """Observed percentiles with an interval around each."""
    ordered = sorted(values)
    picked = [(name, level, ordered[int(level * (len(ordered) - 1))]) for name, level in LEVELS]
    return [
        plots.Mark(name=name, level=level, value=v, low=v * (1 - wide), high=v * (1 + wide), sure=name != "p95")
        for name, level, v in picked
    ]


LEVELS = [("median", 0.5), ("p90", 0.9), ("p95", 0.95)]


@settings(max_examples=100, deadline=None)
@given(samples, st.sampled_from(WIDTHS))
def test_histogram_counts_every_sample_once(values: list[float], width: int) -> None:
    picture = plots.histogram(values, marks_of(values), width, "low", MS)
    (chart,) = svg.charts(picture)
    assert not list(svg.faults(chart))
    bars = [r for r in chart.iter("rect") if r.get("class") == "low"]
    tallest = max(float(r.get("height") or 0) for r in bars)
    top = int(next(t.text for t in chart.iter("text") if t.get("class") == "end quiet") or 0)
    counted = sum(round(float(r.get("height") or 0) / tallest * top) for r in bars)
    beyond = sum(int(n) for n in re.findall(r">(\d+) beyond", picture))
    assert counted + beyond == len(values)


def test_histogram_draws_each_interval_where_it_is() -> None:
    values = [10 + 0.1 * k for k in range(40)]
    marks = [plots.Mark(name="median", level=0.5, value=12.0, low=11.5, high=12.5)]
    (chart,) = svg.charts(plots.histogram(values, marks, 920, "low", MS))
    (across,) = [w for w in svg.lines(chart, "whisker") if w[1] == w[3]]
    at = svg.axis(chart)
    assert [at(across[0]), at(across[2])] == pytest.approx([11.5, 12.5], abs=0.01)
    assert [at(across[0]), at(across[2])] != pytest.approx([11.4, 12.5], abs=0.01)
    dot = next(chart.iter("circle"))
    assert at(float(dot.get("cx") or 0)) == pytest.approx(12.0, abs=0.01)


def test_an_interval_without_a_bound_has_no_cap_on_that_side() -> None:
    mark = plots.Mark(name="p99", level=0.99, value=12.0, low=11.0, high=None, sure=False)
    (chart,) = svg.charts(plots.histogram([10.0, 11.0, 12.0, 13.0], [mark], 920, "low", MS))
    found = svg.lines(chart, "whisker")
    assert len([w for w in found if w[0] == w[2]]) == 1
    assert any("unsure" in (e.get("class") or "") for e in chart.iter("line"))


def test_no_mark_line_crosses_a_label() -> None:
    found = plots.stairs([(100.0, "median 17.1"), (150.0, "p90 17.4"), (160.0, "p95 17.6"), (165.0, "p99 18.0")], 34)
    for x, _, _, _ in found:
        for other, row, side, label in found:
            wide = len(label) * CHARACTER + 4
            low, high = (other - wide, other) if side == "end" else (other, other + wide)
            reaches = next(r for y, r, _, _ in found if y == x) <= row
            assert not (low < x < high and x != other and reaches), (x, label)


@settings(max_examples=60, deadline=None)
@given(st.lists(samples, min_size=1, max_size=4), st.sampled_from(WIDTHS))
def test_distributions_stay_within_their_chart(groups: list[list[float]], width: int) -> None:
    curves = [
        plots.Curve(name=f"subject {k}", css="low", values=values, marks=marks_of(values, 0.4))
        for k, values in enumerate(groups)
    ]
    (chart,) = svg.charts(plots.ecdf(curves, width, MS))
    assert not list(svg.faults(chart))
    for x1, y1, x2, y2 in svg.lines(chart, "whisker"):
        assert 0 <= min(x1, x2) <= max(x1, x2) <= width
        assert min(y1, y2) >= 0


def test_the_curve_is_the_share_of_calls_at_or_below() -> None:
    values = [float(v) for v in range(100, 200)]
    curve = plots.Curve(name="a", css="low", values=values, marks=marks_of(values))
    (chart,) = svg.charts(plots.ecdf([curve], 920, MS))
    at = svg.axis(chart)
    levels = {t.text: float(t.get("y") or 0) - 4 for t in chart.iter("text") if (t.text or "").endswith(" %")}
    (points,) = [svg.points(p) for p in chart.iter("path") if "curve" in (p.get("class") or "")]

    def value_at(label: str) -> float:
        return at(min(points, key=lambda p: abs(p[1] - levels[label]))[0])

    for share, label in ((0.1, "10 %"), (0.5, "50 %"), (0.9, "90 %")):
        exact = values[math.ceil(share * 100) - 1]
        assert value_at(label) == pytest.approx(exact, abs=1.5), label
        assert value_at(label) != pytest.approx(1.05 * exact, abs=1.5)


def test_a_wide_range_has_a_logarithmic_axis() -> None:
    values = [10.0 * 1.2**k for k in range(20)]
    curve = plots.Curve(name="a", css="low", values=values, marks=marks_of(values))
    (chart,) = svg.charts(plots.ecdf([curve], 920, MS))
    ticks = [(float(t.text.split()[0]), float(t.get("x") or 0)) for t in svg.texts(chart, "mid quiet")]
    ratios = [(b[1] - a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(ticks)]
    assert max(ratios) == pytest.approx(min(ratios), rel=0.05)


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=200))
def test_a_broken_axis_keeps_the_order_and_its_ends(values: list[float]) -> None:
    scale = plots.broken(values, 20.0, 120.0)
    heights = [scale(v) for v in sorted(values)]
    assert all(a >= b for a, b in itertools.pairwise(heights))
    assert all(20 <= y <= 120 for y in heights)


@given(st.floats(0.01, 1e4), st.floats(1.01, 1e4), st.booleans(), st.floats(20, 90))
def test_marks_of_a_scale_are_inside_and_apart(low: float, factor: float, log: bool, room: float) -> None:
    scale = plots.Scale(low=low, high=low * factor, start=0, end=600, log=log)
    found = scale.marks(room)
    assert all(low * 0.999 <= v <= low * factor * 1.001 for v in found)
    gaps = [scale(b) - scale(a) for a, b in itertools.pairwise(found)]
    assert all(gap >= 0.6 * room for gap in gaps)


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


@pytest.mark.parametrize("high", [1.3, 7.1, 18.6, 42.0, 99.0, 430.0])
@pytest.mark.parametrize("wide", [150, 330, 920])
def test_an_axis_has_marks_to_read_a_value_from_that_do_not_touch(high: float, wide: int) -> None:
    label = "x" * 20 if wide == 150 else "a"
    rows = [plots.Bar(label=label, parts=[("low", high, "")], end="e")]
    (chart,) = svg.charts(plots.bars(rows, wide, "ms"))
    boxes = [svg.box_of(t) for t in svg.texts(chart, "mid quiet")]
    assert 2 <= len(boxes) <= 12
    assert all(b[0] - a[2] > 5 for a, b in itertools.pairwise(boxes))
