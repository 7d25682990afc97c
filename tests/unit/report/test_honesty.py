"""What was not measured, failed, is slower, over budget or unverified is said where a reader looks first."""

from __future__ import annotations

import json
import re

from edgeopt.report import render
from runtime_bench.judge.stability import derive

from . import fixture, recorded
from .reading import words
from .recorded import Json


def test_a_percentile_without_enough_samples_says_how_many_it_needs() -> None:
    files = render(*fixture.build())
    assert "n/a needs 368 calls n/a needs 3,688 calls" in words(files["report.html"])
    assert "n/a (needs 368 calls)" in files["report.md"].decode()
    made, steps, _, lines = fixture.build()
    enough = render(made, steps, {"build": recorded.measurement(20, 200)}, lines)
    assert "needs" not in words(enough["report.html"]).partition("Steady state")[2].partition("How the")[0]


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
    assert "2.3x slower" in screen
    assert "int8 is slower than float32 on the measuring machine." in screen
    assert "slower" in files["README.md"].decode()


def test_one_process_gives_no_interval() -> None:
    made, steps, measured, lines = fixture.build()
    for subject in measured["build"]["subjects"]:
        del subject["processes"][1:]
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "no interval from 1 pair" in page
    assert "no clear difference" in page
    assert "no interval from 1 process" in page


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


def disturbed() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """Other work ran, int8 varies by half and its memory too."""
    made, steps, measured, lines = fixture.build()
    found = measured["build"]
    found["environment"]["load1"] = 9.0
    for process in found["subjects"][1]["processes"]:
        process["steady_ns"] = [int(v * (1 + 0.5 * (k % 3))) for k, v in enumerate(process["steady_ns"])]
    found["subjects"][1]["memory"]["model"]["raw_bytes"] = [1_000_000, 9_000_000, 9_000_000]
    return made, steps, measured, lines


def test_the_grade_its_reasons_and_advice_are_on_the_first_screen() -> None:
    files = render(*disturbed())
    screen = words(files["report.html"]).partition("Budgets")[0]
    text = files["report.md"].decode().partition("## ")[0]
    for told in (screen, text):
        assert "≈ noisy" in told
        assert "load average 9.0 on 2 CPUs: other work ran meanwhile" in told
        assert "stop it, or wait until it is done" in told
    assert "≈ graded noisy" in screen.partition("pairs of processes")[2]
    assert "- Stability: noisy: load average 9.0" in files["README.md"].decode()
    assert re.search(r"and \d more", screen)
    memory = words(files["report.html"]).partition("Activations over the graph")[0].rpartition("Interpreter")[0]
    assert "int8: the model's peak memory was 1.0 to 9.0 MB over 3 processes." in memory
    stable = words(render(*fixture.build())["report.html"]).partition("Budgets")[0]
    assert "✓ stable" in stable
    assert "noisy" not in stable


def test_an_invalid_latency_is_no_headline() -> None:
    made, steps, measured, lines = fixture.build()
    audit = measured["build"]["subjects"][1]["audit"]
    audit.update(integer_nodes=0, integer_macs=0, float_nodes=64, float_macs=385_000_000)
    files = render(made, steps, measured, lines)
    screen = words(files["report.html"]).partition("Budgets")[0]
    assert "✗ invalid" in screen
    assert "faster" not in screen.partition("Latency")[2]
    assert "Latency: not valid" in files["README.md"].decode()


def test_threads_that_the_target_does_not_run_are_said() -> None:
    made, steps, measured, lines = fixture.build()
    measured["build"]["threads"] = 2
    files = render(made, steps, measured, lines)
    for text in (words(files["report.html"]), files["report.md"].decode()):
        assert "2 threads (the target runs 4)" in text


TOLD = (
    "One call every 33.3 ms (30 a second), timed from the scheduled start",
    "pinned to CPU 2",
    "float32, process 5 failed: killed by SIGKILL (out of memory?)",
    "thermal",
    "Energy a call is not known:",
    "Peak while loading not known: no /proc/self/clear_refs in this container.",
    "Not read back: the profile of the runtime could not be read.",
    "Outside: 2 Resize, 4 QLinearConv.",
    "✗ leak",
    "0.42 before, 1.4 after",
    "a reading costs 41 ns, steps of 1 ns",
)


def test_what_happened_and_what_is_missing_is_told() -> None:
    files = render(*fixture.troubled())
    page, text = words(files["report.html"]), files["report.md"].decode().replace("\\_", "_")
    for told in TOLD:
        assert told in page, told
        assert told in text, told


def test_every_cause_of_an_outlier_is_drawn_and_counted() -> None:
    made, steps, measured, lines = fixture.troubled()
    page = render(made, steps, measured, lines)["report.html"].decode()
    severe = [o for s in derive(measured["release"])["summaries"].values() for o in s["outliers"]["severe"]]
    causes = {o["cause"] for o in severe}
    assert causes == {"preempted", "migrated", "page_fault", "frequency", "throttled", "unknown"}
    for cause in causes:
        count = sum(o["cause"] == cause for o in severe)
        assert f"{cause.replace('_', ' ')}: {count}" in words(page.encode())
    for width in ("wide", "narrow"):
        charts = re.findall(rf'<div class="{width}">(<svg[^>]*Latency of every call.*?</svg>)', page, flags=re.S)
        drawn = [d for c in charts for d in re.findall(r'class="cause frequency" d="([^"]*)"', c)]
        assert sum(d.count("Z") for d in drawn) == sum(o["cause"] == "frequency" for o in severe)


def test_what_no_sensor_tells_says_so() -> None:
    page = words(render(*fixture.build())["report.html"])
    assert "What could not be read, and why" in page
    assert "governor no cpufreq in /sys" in page
    assert "Energy a call is not known: energy_uj of RAPL is for root only; no INA sensor in /sys/class/hwmon." in page
    assert "Over the whole measurement" not in page
    assert "Over the whole measurement" in words(render(*fixture.troubled())["report.html"])


def test_a_sustained_phase_without_sensors_says_what_is_missing() -> None:
    made, steps, measured, lines = fixture.troubled()
    environment = measured["release"]["environment"]
    environment["samples"] = None
    environment["missing"]["samples"] = "no sensor can be read"
    environment["missing"]["samples.frequency_khz"] = "no cpufreq in /sys"
    page = words(render(made, steps, measured, lines)["report.html"])
    assert "not known: no cpufreq in /sys" in page.partition("Sustained load")[2]


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
