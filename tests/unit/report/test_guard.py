"""Limits, worst samples and candidates on the page, in Markdown and for scripts."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib

import pytest

from edgeopt.report import render
from edgeopt.report.plots import Dot, Steps, scatter, timeline
from edgeopt.report.plots.place import place, touch

from . import fixture, svg
from .reading import walk, words
from .recorded import Json

PATH = "worst/000043.png"


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0\0\xff\0\xff\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def limit(kind: str, **changed: object) -> Json:
    row: Json = {
        "name": kind,
        "of": "linear",
        "limit": 10.0,
        "at_least": True,
        "measured": 23.94,
        "low": 23.1,
        "high": 24.8,
    }
    return {**row, "unit": "dB", "stated": False, "ok": True, "note": "", **changed}


def sample(index: int, **changed: object) -> Json:
    row: Json = {"index": index, "name": None, "label": "6", "before": "class 6 (4.247)", "after": "class 0 (4.221)"}
    row |= {"changed": True, "score_before": 1.0, "score_after": 0.0, "output": "linear", "sqnr_db": 43.0}
    row |= {"max_abs": 0.0699, "element": [0, 6], "reference": 4.247, "artifact": 4.177, "finite": True}
    return {**row, "picture": None, **changed}


def guarded() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]], dict[str, bytes]]:
    made, steps, measured, lines = fixture.build()
    drop = {"of": "top1", "limit": 0.01, "at_least": False, "measured": 0.0075, "unit": "share"}
    made["quality"]["limits"] = [
        limit("finite", limit=0.0, at_least=False, measured=0.0, low=None, high=None, unit="samples"),
        limit("drop", **{**drop, "low": -0.001, "high": 0.016, "stated": True}),
        limit("lost", measured=None, low=None, high=None, note="no error"),
    ]
    made["quality"]["worst"] = [
        sample(43, picture=PATH),
        sample(7, before="class 2 (1)", after="class 6 (1.1)", score_before=0.0, score_after=1.0),
        sample(9, finite=False, artifact=None, max_abs=None, sqnr_db="-inf"),
        sample(1, changed=False, sqnr_db=80.0, score_after=1.0),
    ]
    refusal = {"precision": "int4", "reason": "top1 falls from 90 % to 10 %", "worst": [sample(3)]}
    made["quality"]["refused"] = [{**refusal, "limits": [limit("sqnr", measured=3.0, low=2.0, high=4.0, ok=False)]}]
    made["quality"]["golden"] = {"set": "photos", "sha256": "0" * 64, "positions": [0, 100, 200, 300]}
    return made, steps, measured, lines, {PATH: png()}


def test_every_limit_has_figure_interval_and_verdict() -> None:
    page = words(render(*guarded())["report.html"])
    assert "loss top1 ≤ 1.00 % asked for 0.75 % −0.10 to 1.60 % ✓ holds the interval reaches over the limit" in page
    assert "an output or channel that is lost linear ≥ 10.0 dB default identical – ✓ holds no error" in page
    assert "samples that are not finite linear ≤ 0 default 0 – ✓ holds" in page
    assert "int4 was refused top1 falls from 90 % to 10 %" in page
    assert "≥ 10.0 dB default 3.0 dB 2.0 to 4.0 dB ✗ does not hold" in page
    assert "Golden inputs samples 0, 100, 200, 300 of “photos”" in page


def test_worst_samples_before_and_after() -> None:
    files = render(*guarded())
    page, text = words(files["report.html"]), files["report.md"].decode()
    assert "43 6 class 6 (4.247) class 0 (4.221) 1 → 0 43.0 dB 0.0699 largest error in linear[0, 6]" in page
    assert "not finite, or of another shape: linear[0, 6]" in page
    assert "1 6 class 6 (4.247) class 0" not in page  # nothing changed, and near float: no row
    assert f"| ![]({PATH}) | 43 | 6 |" in text
    source = files["report.html"].decode()
    assert 'class="over" data-label="int8 answers">class 0 (4.221)' in source
    assert 'class="ok" data-label="int8 answers">class 6 (1.1)' in source
    assert json.loads(files["report.json"])["quality"]["worst"][0]["picture"] == PATH


def test_pictures_are_inside_the_page_and_nothing_else_is_loaded() -> None:
    page = walk(render(*guarded())["report.html"])
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [a["src"] for a in images] == [f"data:image/png;base64,{base64.b64encode(png()).decode()}"]
    (policy,) = (a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert not [a for t, a in page.tags if "src" in a and t != "img"]


def test_a_picture_that_is_not_there_is_no_broken_link() -> None:
    made, steps, measured, lines, _ = guarded()
    files = render(made, steps, measured, lines)
    assert "![](" not in files["report.md"].decode()
    assert "<img" not in files["report.html"].decode()


def test_no_row_where_nothing_changed_says_so() -> None:
    made, steps, measured, lines, _ = guarded()
    made["quality"]["worst"] = [sample(1, changed=False, sqnr_db=80.0, score_after=1.0)]
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "No answer changed, and int8 is near float on every sample: 80.0 dB on the worst one." in page


def test_hostile_answers_stay_text() -> None:
    made, steps, measured, lines, pictures = guarded()
    evil = "\"><script>alert(1)</script>|`x`\n<img src=x onerror=alert(2)>'\\"
    made["quality"]["worst"] = [sample(1, label=evil, before=evil, after=evil, output=evil, name=evil)]
    made["quality"]["limits"] = [limit("sqnr", of=evil, note=evil)]
    made["quality"]["refused"][0].update(reason=evil, precision=evil)
    files = render(made, steps, measured, lines, pictures)
    walk(files["report.html"])
    for name in ("report.html", "report.md"):
        assert "<script" not in files[name].decode()
        assert "<img src=x" not in files[name].decode()


def point(precision: str, **changed: object) -> Json:
    row: Json = {"candidate": f"onnxruntime {precision}", "backend": "onnxruntime", "precision": precision}
    row |= {"bytes": 5_000_000, "memory": 30_000_000, "runtime": 21_000_000, "predicted": 9_000_000, "median_ms": 8.0}
    row |= {"load_ms": 40.0, "loss": 0.0, "sqnr_db": 40.0, "refused": None, "options": {}, "holds_budget": True}
    return {**row, "over": {}, "on_frontier": True, "chosen": False, **changed}


def searched() -> Json:
    return {
        "objective": "memory",
        "points": [
            point("float32", bytes=19_000_000, memory=60_000_000, median_ms=17.0, sqnr_db=None, holds_budget=False)
            | {"over": {"memory": 60_000_000}},
            point("int8", chosen=True, loss=0.004, sqnr_db=24.0),
            point("int8", backend="openvino", memory=75_000_000, median_ms=7.0, loss=0.003),
            point("weights-int4", memory=28_000_000, median_ms=16.0, loss=0.2, refused="top1 falls", on_frontier=False),
            point("float16", memory=44_000_000, median_ms=18.0, on_frontier=False, options={"arena": "off"}),
        ],
    }


def test_candidates_have_a_section_where_a_planner_ran() -> None:
    made, steps, measured, lines = fixture.build()
    assert "Candidates" not in words(render(made, steps, measured, lines)["report.html"])
    made["frontier"] = searched()
    files = render(made, steps, measured, lines)
    page = words(files["report.html"])
    assert "the least memory ships" in page
    assert "int8, onnxruntime 5.00 MB 30.0 MB 8.00 ms 40.0 ms 0.40 % 24.0 dB ✓ ships" in page
    assert "✗ over budget over in memory (60.0 MB)" in page
    assert "✗ quality top1 falls" in page
    assert "another is better run with arena = off" in page
    assert "| int8, openvino |" in files["report.md"].decode()
    assert json.loads(files["report.json"])["frontier"] == made["frontier"]
    assert "budget" in [t.text for c in svg.charts(files["report.html"].decode()) for t in c.iter("text")]
    (wide, narrow) = (c for c in svg.charts(files["report.html"].decode()) if c.get("aria-label") == "Candidates")
    for chart in (wide, narrow):
        assert not list(svg.faults(chart))
    assert len([t for t in wide.iter("text") if "halo" in (t.get("class") or "")]) == 5  # every point has its name


def test_candidates_that_were_not_measured() -> None:
    made, steps, measured, lines = fixture.build()
    made["frontier"] = searched()
    for entry in made["frontier"]["points"]:
        entry.update(memory=None, median_ms=None, load_ms=None)
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "Loss of quality over size of the artifact." in page
    made["frontier"]["points"] = made["frontier"]["points"][:1]
    assert "Candidates" in words(render(made, steps, measured, lines)["report.html"])


@pytest.mark.parametrize("width", [920, 330])
def test_no_label_of_a_peak_lies_on_an_outline(width: int) -> None:
    """A small peak inside a large one: its label finds a place where no curve runs."""
    high = [1.5, 3, 6.2, 6.6, 2, 4.5, 2, 2.7, 1.4, 1.9, 1.3, 1, 1, 1.3, 0.9, 1]
    low = [0.9, 1.2, 1.9, 2.11, 0.8, 1.5, 0.9, 1.1, 0.5, 0.5, 0.5, 0.4, 0.3, 0.3, 0.3, 0.2]
    drawn = timeline(
        [Steps(css="float", values=high, peak="6.60 MB at conv"), Steps(css="low", values=low, peak="2.11 MB")],
        width,
        "MB",
        "nodes",
    )
    (chart,) = svg.charts(str(drawn))
    assert not list(svg.faults(chart))
    labels = [t for t in chart.iter("text") if t.get("class") == "halo"]
    assert len(labels) == 2
    base, rise, step = 220.0, 190 / (6.6 * 1.04), (width - 56) / len(high)
    for label in labels:
        left, top, right, bottom = svg.box_of(label)
        for values in (high, low):
            span = [
                base - v * rise for k, v in enumerate(values) if 44 + k * step < right and 44 + (k + 1) * step > left
            ]
            assert max(span) < top or min(span) > bottom, label.text


def test_a_place_is_free_or_there_is_none() -> None:
    bounds, wall = (0.0, 0.0, 200.0, 60.0), (60.0, 0.0, 200.0, 60.0)
    box = place(100, 30, 50, bounds=bounds, taken=[(95, 25, 105, 35)])
    assert box is not None
    assert not touch(box, (95, 25, 105, 35))
    assert place(100, 30, 50, bounds=bounds, taken=[], blocked=lambda b: touch(b, wall)) == pytest.approx(
        (8.0 - 4, 24.0, 58.0 - 4, 37.0), abs=8
    )
    assert place(100, 30, 300, bounds=bounds, taken=[]) is None


def test_points_at_one_place_have_labels_apart() -> None:
    drawn = scatter([Dot(x=1, y=1, label=f"candidate {k}", css="front") for k in range(6)], 920, "MB", "ms")
    (chart,) = svg.charts(str(drawn))
    assert not list(svg.faults(chart))
    assert len([t for t in chart.iter("text") if (t.text or "").startswith("candidate")]) == 6


def test_names_of_steps_do_not_wrap() -> None:
    source = render(*fixture.build())["report.html"].decode()
    assert re.search(r'<td class="term" data-label="Step">3\. fuse-pad<', source)
    assert "td.term { white-space: nowrap; }" in source
