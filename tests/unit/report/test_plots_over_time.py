"""Charts over time: every call of every process, and tracks on one time axis."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.report import plots

from . import svg

WIDTHS = (920, 330)
MS = (1e6, "ms")


def panel(steady: list[float], **changes: object) -> plots.Panel:
    given_: dict[str, object] = {"title": "process 1", "css": "low", "warmup": [20.0, 12.0], "steady": steady}
    return plots.Panel(**{**given_, "medium": sorted(steady)[len(steady) // 2] if steady else None, **changes})  # type: ignore[arg-type]


in_its_unit = st.lists(st.floats(1, 5000), min_size=1, max_size=80)


@settings(max_examples=40, deadline=None)
@given(st.lists(in_its_unit, min_size=1, max_size=22), st.sampled_from(WIDTHS))
def test_every_call_is_drawn(groups: list[list[float]], width: int) -> None:
    (chart,) = svg.charts(plots.calls([panel(values, warmup=[]) for values in groups], width, MS))
    assert not list(svg.faults(chart))
    paths = [p.get("d") or "" for p in chart.iter("path") if "dots" in (p.get("class") or "")]
    assert len(paths) == len(groups)
    for values, d in zip(groups, paths, strict=True):
        strokes = [
            tuple(map(float, s)) for s in re.findall(r"M([\d.]+) ([\d.]+)(?:V([\d.]+)|h0)", d.replace("h0", "V0"))
        ]
        assert 1 <= len(strokes) <= len(values)


def test_strokes_cover_the_values_and_nothing_far_from_them() -> None:
    values = [10.0, 10.1, 10.2, 14.0] * 200
    (chart,) = svg.charts(plots.calls([panel(values)], 330, MS))
    (d,) = [p.get("d") or "" for p in chart.iter("path") if "dots" in (p.get("class") or "")]
    heights = sorted({float(y) for y in re.findall(r"[ V]([\d.]+)", d)})
    low, high = heights[0], heights[-1]
    assert not [y for y in heights if low + 8 < y < high - 8]  # nothing is drawn between the two levels
    assert len(d) < 6000


def test_outliers_have_shapes_of_their_own() -> None:
    values = [10.0] * 50
    outliers = []
    for k, cause in enumerate(plots.CAUSES):
        values[5 * k + 3] = 40.0 + k
        outliers.append((5 * k + 3, 40.0 + k, cause))
    (chart,) = svg.charts(plots.calls([panel(values, outliers=outliers)], 920, MS, 30.0))
    drawn = {p.get("class"): p.get("d") for p in chart.iter("path") if "cause" in (p.get("class") or "")}
    assert len(drawn) == len(plots.CAUSES)
    shapes = {re.sub(r"[\d.]+", "", d or "") for d in drawn.values()}
    assert len(shapes) >= 5  # two triangles are told by the side of their tip
    keys = [re.sub("[^A-Z]", "", str(plots.key(cause))) for cause in plots.CAUSES]
    assert len({str(plots.key(cause)) for cause in plots.CAUSES}) == len(keys)
    assert [e for e in chart.iter("line") if e.get("class") == "limit"]


def test_a_failed_process_keeps_its_place() -> None:
    panels = [panel([10.0, 11.0]), panel([], warmup=[], failed=True, title="2"), panel([10.0], title="3")]
    picture = plots.calls(panels, 330, MS)
    assert "✗ failed" in picture
    assert [t.text for t in svg.texts(svg.charts(picture)[0], "quiet")] == ["ms", "process 1", "2", "3"]


@pytest.mark.parametrize("width", WIDTHS)
def test_tracks_share_one_time_axis_and_say_what_is_missing(width: int) -> None:
    points = [(float(t), 10 + 0.02 * t) for t in range(60)]
    tracks = [
        plots.Track(title="latency, ms", traces=[plots.Trace(css="low", points=points, shape="dots")]),
        plots.Track(title="frequency, GHz", missing="not known: no cpufreq in /sys, and a long reason besides that"),
        plots.Track(title="temperature, °C", traces=[plots.Trace(css="sensor s0", points=points, label="cpu-thermal")]),
    ]
    picture = plots.course(tracks, (0.0, 60.0), width, "s", [(10.0, 50.0, "int8 sustained")])
    (chart,) = svg.charts(picture)
    assert not list(svg.faults(chart))
    told = " ".join(t.text or "" for t in chart.iter("text"))
    assert "not known: no cpufreq in /sys" in told
    assert "int8 sustained" in told
    at = svg.axis(chart)
    (line,) = [svg.points(p) for p in chart.iter("path") if "sensor" in (p.get("class") or "")]
    assert [at(line[0][0]), at(line[-1][0])] == pytest.approx([0, 59], abs=0.3)


def test_a_long_trace_is_thinned_and_keeps_its_extremes() -> None:
    points = [(k / 100, 50.0) for k in range(60_000)]
    points[31_234] = (312.34, 90.0)
    track = plots.Track(title="t", traces=[plots.Trace(css="sensor s0", points=points)])
    (chart,) = svg.charts(plots.course([track], (0.0, 600.0), 920, "s"))
    (line,) = [svg.points(p) for p in chart.iter("path")]
    assert len(line) < 3000
    assert min(y for _, y in line) < min(y for x, y in line if abs(x - line[0][0]) < 1) - 20
