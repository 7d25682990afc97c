"""What was not measured, failed, is slower, over budget or unverified is said where a reader looks first."""

from __future__ import annotations

import json

from edgeopt.report import render

from . import fixture
from .reading import words


def test_a_percentile_without_enough_samples_says_how_many_it_needs() -> None:
    assert "n/a (needs 368 samples)" in words(render(*fixture.build())["report.html"])
    assert "n/a (needs" not in words(render(*fixture.release())["report.html"])


def test_measured_on_the_target_drops_the_banner() -> None:
    files = render(*fixture.release())
    assert "Not measured on the target" not in words(files["report.html"])
    assert "not on the target" not in files["README.md"].decode()
    assert "not from" not in files["report.md"].decode()


def test_second_backend_over_budget_and_failed_process_are_said() -> None:
    page = words(render(*fixture.release())["report.html"])
    assert "prefers tensorrt; this is onnxruntime" in page
    assert "Budget not met: memory 34.3 MB, limit 32.0 MB" in page
    assert "float32, process 5 failed: killed by signal 9" in page


def test_what_was_not_measured_says_why() -> None:
    files = render(*fixture.unmeasured())
    page, readme = words(files["report.html"]), files["README.md"].decode()
    for part in (
        "Not measured: the build made no measurement",
        "Not measured: no /proc on this system",
        "Not measured: no evaluation set was given. Nothing is claimed about quality.",
        "unknown shape",
        "Not computed for this build.",
    ):
        assert part in page
    assert "faster" not in page
    assert "agree" not in page
    assert "the build was not told how raw data becomes this input" in readme
    assert "Nothing was measured on the target" in readme
    assert json.loads(files["report.json"])["latency"]["ratio"] is None


def test_slower_is_said_on_the_first_screen() -> None:
    made, steps, measured, lines = fixture.build()
    for process in measured["build"]["subjects"][1]["processes"]:
        process["steady_ns"] = [5 * value for value in process["steady_ns"]]
    files = render(made, steps, measured, lines)
    screen = words(files["report.html"]).partition("Budgets")[0]
    assert "2.4x slower" in screen
    assert "int8 is slower than float32 on the measuring machine." in screen
    assert "slower" in files["README.md"].decode()


def test_one_process_gives_no_interval() -> None:
    made, steps, measured, lines = fixture.build()
    for subject in measured["build"]["subjects"]:
        del subject["processes"][1:]
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "no interval from 1 pair" in page
    assert "no clear difference" in page
    assert "n/a (needs 2 processes)" in page


def test_every_process_failed() -> None:
    made, steps, measured, lines = fixture.build()
    for process in measured["build"]["subjects"][1]["processes"]:
        process.update(phases_ns={}, steady_ns=[], error="illegal instruction")
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "int8, process 3 failed: illegal instruction" in page
    assert "every process failed" in page


def test_quality_on_random_data_is_not_a_claim() -> None:
    made, steps, measured, lines = fixture.build()
    made["quality"].update(verified=False, reason="random data cannot show quality")
    screen = words(render(made, steps, measured, lines)["report.html"]).partition("Budgets")[0]
    assert "Quality not verified random data cannot show quality" in screen
    assert "97.0 % agree" not in screen.partition("Quality")[2]


def test_unknown_shapes_have_no_timeline() -> None:
    made, steps, measured, lines = fixture.build()
    lines["int8"][3]["live_bytes"] = None  # type: ignore[index]
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "Not computed for int8: a shape is unknown." in page
    assert "float32: peak 6.62 MB at blocks.1.0/depthwise" in page


def test_rolled_back_skipped_and_float_nodes_carry_their_reasons() -> None:
    page = words(render(*fixture.build())["report.html"])
    assert "✗ rolled back" in page
    assert "top-1 agreement with the float model is 71.50 %" in page
    assert "1 step did not apply" in page
    assert "2. fuse-conv-batchnorm nothing to rewrite" in page
    assert "its output is a graph output: kept unclipped" in page
    assert "and 37 more" in words(render(*fixture.release())["report.html"])


def test_no_evaluation_set_but_a_comparison_on_probes() -> None:
    made, steps, measured, lines = fixture.build()
    made["quality"].update(verified=False, set=None, samples=4)
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "Quality not verified no evaluation set was given" in page
    assert "4 samples that are no evaluation set" in page
    assert "None" not in page


def test_a_budget_that_was_not_measured_is_not_met() -> None:
    made, steps, measured, lines = fixture.build()
    made["budget"]["checked"] = [{"name": "p99", "limit": 20.0, "measured": None, "ok": False}]
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "Budget not met: p99 not measured, limit 20.0 ms" in page
    assert "✗ not measured" in page


def test_an_output_of_nothing_but_error_is_the_worst() -> None:
    made, steps, measured, lines = fixture.build()
    steps[3]["drift"].append({"output": "b", "sqnr_db": "-inf", "cosine": 0.0, "max_abs": 2.0})
    files = render(made, steps, measured, lines)
    assert json.loads(files["report.json"])["steps"][3]["sqnr_db"] == "-inf"
    assert "−∞ dB" in words(files["report.html"])


def test_the_second_choice_of_backend_is_said_once() -> None:
    made, steps, measured, lines = fixture.release()
    made["verdict"]["warnings"] = ["built for onnxruntime, not for tensorrt: not in this version"]
    screen = words(render(made, steps, measured, lines)["report.html"]).partition("Budgets")[0]
    assert screen.count("tensorrt") == 1


def test_the_interval_of_the_drop_is_in_all_three() -> None:
    made, steps, measured, lines = fixture.build()
    made["quality"]["metric"]["half_width"] = 0.0062
    files = render(made, steps, measured, lines)
    told = "drop 0.75 ± 0.62 points"
    assert words(files["report.html"]).count(told) == 2
    assert files["report.md"].decode().count(told) == 2
    assert files["README.md"].decode().count(told) == 1
    made["quality"]["metric"]["drop"] = -0.0075
    assert "gain 0.75 ± 0.62 points" in words(render(made, steps, measured, lines)["report.html"])


def test_what_disturbed_a_measurement_stands_beside_its_figures() -> None:
    made, steps, measured, lines = fixture.build()
    measured["build"]["threads"] = 2
    measured["build"]["advice"] = [
        {"code": "load_above_cpus", "severity": "warning", "text": "load average 9.0 on 2 CPUs"},
        {"code": "memory_varies", "severity": "warning", "text": "float32: 1 to 9 MB over 3 processes"},
    ]
    files = render(made, steps, measured, lines)
    page = words(files["report.html"])
    latency, memory = (
        page.partition("Steady state")[0],
        page.partition("Steady state")[2].partition("Size and quality")[0],
    )
    for text in (latency, files["report.md"].decode()):
        assert "2 threads (the target runs 4)" in text
        assert "Disturbed: load average 9.0 on 2 CPUs." in text
    assert "Not steady: float32: 1 to 9 MB over 3 processes." in memory
    assert "Not steady" not in latency
    assert json.loads(files["report.json"])["latency"]["advice"] == measured["build"]["advice"]


def test_memory_shows_its_largest_repeat() -> None:
    made, steps, measured, lines = fixture.build()
    model = made["memory"]["int8"]["model"]
    runtime = made["memory"]["int8"]["runtime"]
    model["raw_bytes"] = [model["bytes"] + 40_000_000, model["bytes"], model["bytes"]]
    runtime["raw_bytes"] = [runtime["bytes"]] * 3
    found = json.loads(render(made, steps, measured, lines)["report.json"])["memory"]["int8"]
    assert found["charged"] == model["bytes"] + runtime["bytes"]
    assert found["charged_worst"] == found["charged"] + 40_000_000


def test_a_change_of_nothing_is_not_written_as_a_change() -> None:
    made, steps, measured, lines = fixture.build()
    steps[0]["after"]["weight_bytes"] = steps[0]["before"]["weight_bytes"] + 100
    steps[0]["drift"] = []
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "0.0 %)" not in page.partition("What stayed float")[0].partition("Size and quality")[2]
    assert "not compared" not in page
    assert page.count("17 folded") == 1


def test_the_text_report_has_the_whole_contract() -> None:
    made, steps, measured, lines = fixture.build()
    text = render({**made, "identity": "d" * 64}, steps, measured, lines)["report.md"].decode()
    for part in ("Preprocessing of inputs", "0.485", "Identity of the bundle", "d" * 64, "at least 20.9 dB"):
        assert part in text
