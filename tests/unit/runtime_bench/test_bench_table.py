"""The first screen: what is on it, in which order, and that it fits."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from runtime_bench import histogram, table, units
from runtime_bench.judge.stability import derive

from . import measurements, simulate
from .measurements import flat, measurement


def pair(calls: int = 400) -> dict[str, Any]:
    rng = random.Random(1)
    slow, fast = simulate.iid(rng, 10, calls), [[v // 2 for v in g] for g in simulate.spikes(rng, 10, calls)]
    subjects = [simulate.subject(slow, "float32"), simulate.subject(fast, "int8")]
    for subject in subjects:
        subject["runtime"] = {"name": "onnxruntime", "version": "1.20.1", "provider": "CPUExecutionProvider"}
        figure = {"bytes": 12_345_678, "raw_bytes": [12_345_678] * 3}
        subject["memory"].update(dict.fromkeys(("interpreter", "runtime", "model", "load"), figure))
        subject["memory"]["growth"] = {"bytes_per_call": 0.0, "low": 0.0, "high": 0.0, "verdict": "none"}
    return dict(measurement(*subjects))


def screen(found: dict[str, Any], **options: Any) -> str:
    return "\n".join(table.bench_lines(found, "mobilenet for raspberry-pi-5", **options))


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "n/a"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (999400, "999 us"),
        (999600, "1.00 ms"),
        (9994000, "9.99 ms"),
        (9996000, "10.0 ms"),
        (12345678, "12.3 ms"),
        (99960000, "100 ms"),
        (2.5e9, "2.50 s"),
        (75e9, "75.0 s"),
    ],
)
def test_durations(nanoseconds: float | None, text: str) -> None:
    assert table.duration(nanoseconds) == text


def test_sizes_and_columns() -> None:
    sizes = [table.size(n) for n in (None, 0, 12345, 100000, 46137344)]
    assert sizes == ["n/a", "0.0 kB", "12.3 kB", "0.1 MB", "46.1 MB"]
    assert table.align([["a", "b"], ["long", "1"]]) == ["  a      b", "  long   1"]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "n/a"),
        (0.0, "0.0 %"),
        (0.0004, "0.04 %"),
        (0.05, "5.0 %"),
        (0.123, "12 %"),
        (-0.02, "-2.0 %"),
        (2.0, "200 %"),
    ],
)
def test_percents(share: float | None, text: str) -> None:
    assert units.percent(share) == text


def test_counts() -> None:
    assert [units.count(n, w) for n, w in ((1, "call"), (2, "process"), (3, "involuntary switch"))] == [
        "1 call",
        "2 processes",
        "3 involuntary switches",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [False, True])
def test_it_fits(width: int, unicode: bool) -> None:
    lines = table.bench_lines(pair(), "mobilenet for raspberry-pi-5", width=width, unicode=unicode)
    assert max(map(len, lines)) <= width
    assert len(lines) <= (32 if width >= 80 else 36)
    if not unicode:
        "\n".join(lines).encode("ascii")


def test_conditions_come_first_then_the_grade_then_figures() -> None:
    text = screen(pair(), notes=["inputs: 3 golden samples"])
    order = [
        "mobilenet for",
        "Example CPU 3000, 4 CPUs",
        "1 thread on CPU 3",
        "inputs: 3",
        "grade: ",
        "median",
        "p99.9",
    ]
    places = [text.index(words) for words in [*order, "int8 takes 0.5", "peak memory"]]
    assert places == sorted(places)


def test_the_grade_shows_reasons_and_advice_once() -> None:
    text = screen(pair())
    assert "grade: noisy (float32 stable, int8 noisy)" in text
    assert "! int8: the CV of the latency is" in text
    assert text.count("-> repeat it on a machine where nothing else runs") == 1
    assert "grade: stable\n\n" in screen(measurement(flat()))


def test_slower_int8_is_said_on_the_first_line() -> None:
    subjects = [{**flat(n, name=name), "precision": name} for n, name in ((1000, "float32"), (1600, "int8"))]
    lines = table.bench_lines(measurement(*subjects), "net for board")
    assert lines[0] == "net for board: int8 takes 1.60 times as long as float32 here"
    subjects = [{**flat(n, name=name), "precision": name} for n, name in ((1000, "float32"), (600, "int8"))]
    assert table.bench_lines(measurement(*subjects), "net for board")[0] == "net for board"


def test_reasons_beyond_the_limit_are_named() -> None:
    found = {
        "grade": "unstable",
        "subjects": {"s": "unstable"},
        "reasons": [
            {"code": f"c{i}", "severity": "noisy" if i < 6 else "info", "subject": None, "text": f"t{i}", "advice": "a"}
            for i in range(12)
        ],
    }
    lines = table.grade_lines(found)
    assert lines[0] == "grade: unstable"
    assert [line for line in lines if "!" in line] == ["  ! t0", "  ! t1", "  ! t2"]
    assert [line for line in lines if "note" in line] == ["  note: t6"]
    assert lines[-1] == "  8 more in the JSON: c3, c4, c5, c7, c8, c9, c10, c11"


def test_subjects_with_one_reason_share_a_line() -> None:
    reason = {"code": "few_processes", "severity": "info", "text": "a: 3 processes", "advice": "x", "subject": "a"}
    other = {**reason, "text": "b: 3 processes", "subject": "b"}
    stability = {"grade": "stable", "subjects": {"a": "stable", "b": "stable"}, "reasons": [reason, other]}
    assert table.grade_lines(stability) == ["grade: stable", "  note: a (b too): 3 processes"]


def test_percentiles_have_intervals_or_say_what_they_need() -> None:
    many = screen(pair(400))
    assert "n/a" not in many.split("peak memory")[0]
    few = screen(pair(36))
    assert few.count("n/a (needs 368)") == 2 * (10 * 36 < 368)
    assert few.count("n/a (needs 3688)") == 2
    rows = {line.split()[0]: line for line in many.splitlines() if line.startswith("  p")}
    assert set(rows) >= {"p90", "p95", "p99", "p99.9"}
    assert rows["p99"].count("-") == 2


def test_intervals_from_few_processes_are_marked() -> None:
    rng = random.Random(1)
    text = screen(measurement(simulate.subject(simulate.iid(rng, 6, 150)), effort="quick"))
    assert ")*" in text
    assert "*: from few processes" in text
    assert "few processes" not in screen(pair())


def test_intervals_share_their_unit_or_name_it() -> None:
    assert table._with_interval(1_230_000, 1_200_000, 1_310_000) == "1.23 ms (1.20-1.31)"
    assert table._with_interval(1_010_000, 990_000, 1_020_000) == "1.01 ms (990 us-1.02 ms)"
    assert table._with_interval(1_010_000, None, None) == "1.01 ms"
    assert table._with_interval(None, None, None) == "n/a"


def test_many_subjects_wrap_into_blocks() -> None:
    subjects = [flat(1000 * (i + 1), name=f"subject-{i}") for i in range(5)]
    lines = table.bench_lines(measurement(*subjects), "t", width=80)
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.startswith("  latency")]
    assert len(heads) > 1
    assert sum(head.count("subject-") for head in heads) == 5


def test_histogram_counts_every_call() -> None:
    subject = simulate.subject([[100] * 10 + [200] * 20 + [10_000]])
    _, line = histogram.histogram_lines(measurement(subject), 60)
    name, bars, rest = line.split("|")
    assert name.split() == ["float32", "100", "ns"]
    assert bars[0] == histogram.ASCII[5]  # half of the highest, rounded up
    assert "@" in bars
    assert set(bars) <= set(histogram.ASCII)
    assert rest.split() == ["270", "ns", "+1", "to", "10.0", "us"]
    _, line = histogram.histogram_lines(measurement(subject), 60, unicode=True)
    assert set(line.split("|")[1]) <= set(histogram.BLOCKS)
    assert "█" in line


def test_two_modes_can_be_seen() -> None:
    subject = simulate.subject(simulate.two_modes(random.Random(1), 10, 150))
    _, line = histogram.histogram_lines(measurement(subject), 80)
    levels = [histogram.ASCII.index(c) for c in line.split("|")[1]]
    top = levels.index(max(levels))
    second = max(range(top + 8, len(levels)), key=lambda i: levels[i])
    assert min(levels[top:second]) < 0.6 * levels[second]


def test_the_ends_of_a_narrow_axis_can_be_told_apart() -> None:
    subject = simulate.subject([[2_000_100 + i for i in range(100)]])
    _, line = histogram.histogram_lines(measurement(subject), 60)
    assert line.split("|")[0].split()[1:] == ["2.00", "ms"]
    assert line.split("|")[2].split() == ["+99", "ns"]


def test_a_constant_latency_has_a_histogram() -> None:
    _, line = histogram.histogram_lines(measurement(simulate.subject([[5] * 50])), 60)
    assert line.split("|")[1].strip() == "@"


def test_blocks_are_drawn_where_the_stream_can() -> None:
    utf8, ascii_ = (io.TextIOWrapper(io.BytesIO(), encoding=name) for name in ("utf-8", "ascii"))
    assert table.draws_blocks(utf8)
    assert not table.draws_blocks(ascii_)
    assert not table.draws_blocks(object())


def test_periodic_loads_tell_their_deadline() -> None:
    subject = flat()
    subject["processes"][0]["steady_ns"][100:102] = [1400, 1400]
    found = measurement(subject, load={"kind": "periodic", "fps": 30.0, "period_ns": 1250})
    text = screen(found)
    assert "30 calls a second" in text
    assert "s: 2 of 4000 calls missed the deadline of 1.25 us (0.05 %" in text
    assert "2 in a row" in text


def test_failed_subjects_and_missing_figures_are_shown() -> None:
    text = screen(measurement(simulate.subject([[], []])))
    assert "grade: invalid" in text
    assert "0 in 0 processes, 2 failed" in text
    assert "no figure: not asked for" in text


def test_optional_rows_appear_where_they_were_measured() -> None:
    subject = flat()
    assert "after pause" not in screen(measurement(subject))
    for process in subject["processes"]:
        process["burst_ns"] = [[1500, 1000]]
    assert "after pause" in screen(measurement(subject))
    found = measurement(subject)
    results = derive(found)
    results["summaries"]["s"]["energy"] = {"joules_per_call": 0.0123}
    assert "12.3 mJ" in screen({**found, "results": results})


def test_ratio_in_words() -> None:
    result = {"a": "float32", "b": "int8", "ratio": 0.5, "low": 0.49, "high": 0.51, "pairs": 10, "verdict": "faster"}
    line = table.ratio_line(result)
    assert line == "int8 takes 0.500 times as long as float32 (95 % interval 0.490 to 0.510, 10 pairs): faster"
    assert table.ratio_line({**result, "low": None}).endswith("(one pair: no interval)")
    assert "n/a" in table.ratio_line({**result, "ratio": None})


def test_verify_lines() -> None:
    checks = [{"name": "digests", "ok": True, "detail": "3 files"}, {"name": "golden", "ok": False, "detail": "off"}]
    lines = table.verify_lines({"checks": checks, "ok": False}, "t")
    assert lines == ["t", "  ok    digests: 3 files", "  FAIL  golden: off", "NOT verified: 1 of 2 checks failed"]
    assert table.verify_lines({"checks": checks[:1], "ok": True}, "t")[-1] == "verified"


def test_an_old_machine_description_is_enough() -> None:
    environment = {"board": None, "cpu": "c", "machine": "m", "cpus": 1, "kernel": "k"}
    found = {**measurement(flat()), "environment": environment, "affinity": None}
    assert "on c, 1 CPU, k" in screen(found)
    assert measurements.ENVIRONMENT["cpu"] not in screen(found)
