"""The grade end to end: each verdict fires on its own case, and quiet data stay stable."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import runtime_bench
from runtime_bench import protocol
from runtime_bench.judge import causes, reasons
from runtime_bench.judge.stability import derive, grade, results

from . import simulate
from .measurements import codes, flat, measurement

MS = 1_000_000
TRIALS = 100


def made(generator: simulate.Generator, seed: int, **changes: Any) -> dict[str, Any]:
    return measurement(simulate.subject(generator.make(random.Random(seed), 10, 150)), **changes)


def judged(*subjects: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return grade(measurement(*subjects, **changes))


def one(found: dict[str, Any], code: str) -> dict[str, Any]:
    (reason,) = [r for r in found["reasons"] if r["code"] == code]
    return dict(reason)


@pytest.fixture(scope="module")
def quiet() -> list[dict[str, Any]]:
    """Results of measurements of independent noise: 10 processes of 150 calls with a CV of 5 %."""
    return [derive(made(simulate.IID, seed)) for seed in range(TRIALS)]


def test_independent_noise_is_stable(quiet: list[dict[str, Any]]) -> None:
    """At most 5 % of the grades may be anything but stable."""
    found = [results["stability"] for results in quiet]
    bad = [codes(g, "noisy", "unstable", "invalid") for g in found if g["grade"] != "stable"]
    assert len(bad) <= 0.05 * TRIALS, bad


def test_independent_noise_of_a_quick_run_is_stable() -> None:
    groups = [simulate.iid(random.Random(seed), 3, 50) for seed in range(TRIALS)]
    found = [judged(simulate.subject(g), effort="quick") for g in groups]
    assert sum(g["grade"] != "stable" for g in found) <= 0.05 * TRIALS
    apart = simulate.subject([[1000 + i % 9 for i in range(50)], [1100] * 50, [1000 + i % 9 for i in range(50)]])
    assert "too_few_processes" in codes(judged(apart, effort="quick"), "noisy")


@pytest.mark.parametrize(
    ("generator", "code", "worst"),
    [
        (simulate.AR1, "autocorrelated", "unstable"),
        (simulate.PROCESS, "too_few_processes", "noisy"),
        (simulate.STEP_INSIDE, "no_steady_state", "unstable"),
        (simulate.LINEAR, "drift", "unstable"),
        (simulate.MODES, "bimodal", "noisy"),
        (simulate.SPIKES, "range", "noisy"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_case_has_its_verdict(generator: simulate.Generator, code: str, worst: str) -> None:
    found = [grade(made(generator, seed)) for seed in range(10)]
    assert sum(code in codes(g) for g in found) >= 9, [codes(g) for g in found]
    if worst == "noisy":
        assert sum(g["grade"] == worst for g in found) >= 9, [codes(g, "unstable") for g in found]


def test_verdicts_do_not_fire_on_independent_noise(quiet: list[dict[str, Any]]) -> None:
    found = [results["stability"] for results in quiet]
    for code in ("autocorrelated", "too_few_processes", "no_steady_state", "drift", "thermal", "bimodal", "range"):
        assert sum(code in codes(g) for g in found) <= 0.05 * TRIALS, code


def test_a_planted_looser_threshold_would_be_caught(quiet: list[dict[str, Any]]) -> None:
    """With the plain robust CV against 5 %, nearly half of the quiet measurements would be called noisy."""
    cvs = [results["summaries"]["float32"]["robust_cv"] for results in quiet]
    assert sum(cv >= reasons.ROBUST_CV for cv in cvs) >= 0.2 * TRIALS
    assert not any("high_robust_cv" in codes(results["stability"]) for results in quiet)


def test_good_data_give_no_reason() -> None:
    found = judged(flat())
    assert codes(found) == set()
    assert found == {"grade": "stable", "subjects": {"s": "stable"}, "reasons": []}


def test_reasons_are_data_and_sentences() -> None:
    subject = flat(processes=3)
    subject["processes"][1].update(error="killed by SIGKILL", steady_ns=[])
    found = judged(subject, effort="quick", environment={"load1": 9.0, "governor": "ondemand"})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for reason in found["reasons"]:
        assert set(reason) == {"code", "severity", "subject", "value", "threshold", "text", "advice"}
        assert reason["severity"] in ("info", "noisy", "unstable", "invalid")
        for sentence in (reason["text"], reason["advice"]):
            assert sentence
            assert not sentence.endswith(".")
            assert "\n" not in sentence
        if reason["subject"]:
            assert reason["text"].startswith(reason["subject"] + ": ")
    ranks = [("info", "noisy", "unstable", "invalid").index(r["severity"]) for r in found["reasons"]]
    assert ranks == sorted(ranks, reverse=True)


def test_a_subject_answers_for_itself_and_for_what_concerns_all() -> None:
    bad = flat(name="bad")
    for process in bad["processes"]:
        process["steady_ns"] = [1000, 1400] * 200
    alone = judged(flat(name="good"), bad)
    assert alone["subjects"] == {"good": "stable", "bad": "noisy"}
    assert alone["grade"] == "noisy"
    both = judged(flat(name="good"), bad, environment={"steal_share": 0.3})
    assert both["subjects"] == {"good": "unstable", "bad": "unstable"}


# what a subject's figures say


def test_nothing_measured_is_invalid() -> None:
    found = judged(simulate.subject([[], []]))
    assert found["grade"] == "invalid"
    assert one(found, "no_sample")["value"] == 0
    assert "SIGKILL" in one(found, "no_sample")["text"]


AUDIT: dict[str, Any] = {
    "asked": "CUDAExecutionProvider",
    "nodes": 100,
    "providers": {"CUDAExecutionProvider": 90, "CPUExecutionProvider": 10},
    "outside": [{"op": "Resize", "provider": "CPUExecutionProvider", "count": 10, "macs": 5}],
    "shape_nodes_outside": 0,
    "opaque_nodes": 0,
    "macs": {"CUDAExecutionProvider": 95, "CPUExecutionProvider": 5},
    "macs_reason": None,
    "integer_nodes": 0,
    "float_nodes": 60,
    "integer_macs": 0,
    "float_macs": 100,
}


def audited(precision: str | None = None, **changes: Any) -> dict[str, Any]:
    return {**flat(), "precision": precision, "audit": {**AUDIT, **changes}}


def test_the_wrong_provider_is_invalid_and_a_part_is_told() -> None:
    part = judged(audited())
    assert part["grade"] == "stable"
    assert one(part, "provider_partial")["value"] == pytest.approx(0.05)
    assert (
        "10 of 100 nodes did not run on CUDAExecutionProvider (5.0 % of the MACs)"
        in one(part, "provider_partial")["text"]
    )
    outside = [{"op": "Conv", "provider": "CPUExecutionProvider", "count": 100, "macs": 100}]
    changes = {"providers": {"CPUExecutionProvider": 100}, "outside": outside, "macs": {"CPUExecutionProvider": 100}}
    whole = judged(audited(**changes))
    assert whole["grade"] == "invalid"
    assert "ran on CPUExecutionProvider, asked for CUDAExecutionProvider" in one(whole, "provider_wrong")["text"]
    plain = flat()
    plain["runtime"] = {"name": "r", "version": "1", "provider": "CPUExecutionProvider", "asked": "cuda"}
    assert judged(plain)["grade"] == "invalid"


def test_int8_without_an_integer_kernel_is_invalid() -> None:
    assert "precision" in codes(judged(audited("int8")), "invalid")
    assert "precision" not in codes(judged(audited("float32")))
    assert "precision" not in codes(judged(audited("int8", integer_nodes=40, integer_macs=80)))
    assert "precision" not in codes(judged({**flat(), "precision": "int8", "audit": {"reason": "no profile"}}))


def test_failed_processes() -> None:
    subject = flat()
    for process in subject["processes"][:3]:
        process.update(error="killed by SIGILL", steady_ns=[])
    found = judged(subject)
    assert one(found, "process_failed")["text"] == "s: 3 of 10 processes failed: killed by SIGILL"
    assert found["grade"] == "noisy"
    for process in subject["processes"][:6]:
        process.update(error="killed by SIGILL", steady_ns=[])
    assert judged(subject)["grade"] == "unstable"


def test_amounts() -> None:
    few = judged(flat(processes=3), effort="quick")
    assert codes(few) == {"few_processes"}
    assert one(few, "few_processes")["advice"] == "--effort standard runs 10"
    assert few["grade"] == "stable"
    cut = judged(flat(processes=3), effort="standard", seconds=5.0, cut=["timing"])
    assert codes(cut) == {"few_processes", "out_of_time"}
    assert "--seconds" in one(cut, "few_processes")["advice"]
    assert codes(judged(flat(calls=20))) == {"no_p99"}
    assert codes(judged(flat(calls=2))) == {"few_calls"}
    short = flat()
    short["processes"][1]["cut_short"] = True
    assert codes(judged(short)) == {"cut_short"}


def test_spread() -> None:
    wide = flat()
    for process in wide["processes"]:
        process["steady_ns"] = [1000, 1000, 1000, 1300] * 100
    assert codes(judged(wide), "noisy") >= {"high_cv"}
    for process in wide["processes"]:
        process["steady_ns"] = [*[1000] * 18, 3000, 3000] * 20
    assert "high_cv" in codes(judged(wide), "unstable")
    for process in wide["processes"]:
        process["steady_ns"] = [930, 1000, 1070, 1000, 960, 1080, 920, 1030] * 50
    found = judged(wide)
    assert codes(found) == {"high_robust_cv"}
    assert one(found, "high_robust_cv")["value"] > 0.05


def far_calls(known: int, unknown: int) -> dict[str, Any]:
    """Ten processes of 400 calls with calls of three times the length, some of them preempted."""
    subject = flat()
    for i in range(known + unknown):
        process = subject["processes"][i % 10]
        process["steady_ns"][7 * i + 3] = 3000
        if i < known:
            process["events"]["wait_ns"].append([7 * i + 3, 1800])
    return subject


def test_far_calls_count_where_nothing_explains_them() -> None:
    explained = judged(far_calls(9, 0))
    assert codes(explained) == {"range"}
    assert explained["grade"] == "stable"
    assert "9 calls lie 50 % or more off the median: 9 preempted; the" in one(explained, "range")["text"]
    assert judged(far_calls(0, 4))["grade"] == "stable"  # 1 in 1000
    unknown = judged(far_calls(9, 5))
    assert unknown["grade"] == "noisy"
    assert "9 preempted, 5 of unknown cause" in one(unknown, "range")["text"]


def test_a_slow_first_process() -> None:
    subject = flat(calls=80)
    subject["processes"][0]["steady_ns"] = [v + 200 for v in subject["processes"][0]["steady_ns"]]
    found = one(judged(subject), "slow_first_process")
    assert found["text"] == "s: the first process was 20 % slower than the others"
    subject["processes"][5]["steady_ns"] = [v + 200 for v in subject["processes"][5]["steady_ns"]]
    assert "slow_first_process" not in codes(judged(subject))


def test_drift_and_heat() -> None:
    subject = simulate.subject(simulate.drift(random.Random(1), 10, 150))
    blind = one(judged(subject, environment={"samples": None, "thermal_throttles": None}), "drift")
    assert blind["severity"] == "unstable"
    assert "no sensor can be read" in blind["text"]
    assert "no sensor says why" in one(judged(subject), "drift")["text"]
    hot = judged(subject, environment={"thermal_throttles": 7})
    assert "the processor throttled itself 7 times" in one(hot, "thermal")["text"]
    assert hot["grade"] == "unstable"
    assert "cool" in one(hot, "thermal")["advice"]
    stopped = one(judged(subject, environment={"throttled_periods": 7}), "thermal")
    assert "quota" in stopped["text"]
    assert "raise the CPU quota" in stopped["advice"]
    assert "drift" not in codes(hot)


def test_warm_up() -> None:
    mixed = simulate.subject(simulate.iid(random.Random(1), 5, 150) + simulate.step(random.Random(2), 5, 150))
    assert "inconsistent_warmup" in codes(judged(mixed))
    cold = flat()
    for process in cold["processes"][:2]:
        process["warmup_stable"] = False
    assert codes(judged(cold), "info") == {"not_settled"}
    cold["processes"][2]["warmup_stable"] = False
    assert codes(judged(cold), "noisy") == {"not_settled"}


def test_missed_deadlines_are_told_and_no_fault() -> None:
    subject = flat()
    subject["processes"][0]["steady_ns"][100:102] = [1400, 1400]
    found = judged(subject, load={"kind": "periodic", "fps": 800000.0, "period_ns": 1250})
    assert one(found, "deadline_missed")["value"] == pytest.approx(2 / 4000)
    assert found["grade"] == "stable"


def test_a_load_that_no_call_can_keep_up_with_is_unstable() -> None:
    """Latency counts from the schedule: it grows with every call, and its median says how long was looked."""
    subject = flat()
    for process in subject["processes"]:
        process["service_ns"] = list(process["steady_ns"])
    periodic = {"kind": "periodic", "fps": 800000.0, "period_ns": 1250}
    assert "overloaded" not in codes(judged(subject, load=periodic))
    for process in subject["processes"]:
        process["service_ns"] = [1300] * len(process["steady_ns"])
    assert one(judged(subject, load=periodic), "overloaded")["value"] == 1300
    assert "overloaded" in codes(judged(subject, load=periodic), "unstable")


def test_an_int8_that_could_not_be_audited_is_told() -> None:
    subject = {**flat(), "precision": "int8", "audit": {"reason": "no profile"}}
    assert "no profile" in one(judged(subject), "not_audited")["text"]
    assert judged(subject)["grade"] == "stable"
    assert "not_audited" not in codes(judged({**subject, "precision": "float32"}))


def test_memory() -> None:
    subject = flat()
    subject["memory"]["model"] = {"bytes": 41_000_000, "raw_bytes": [40_000_000, 41_000_000, 47_000_000]}
    assert codes(judged(subject), "noisy") == {"memory_varies"}
    subject["memory"]["model"]["raw_bytes"] = [40_000_000, 41_000_000, 41_500_000]
    subject["memory"]["growth"] = {"bytes_per_call": 2048.4, "low": 2000.0, "high": 2100.0, "verdict": "leak"}
    found = judged(subject)
    assert codes(found) == {"leak"}
    assert "grows by 2048 bytes a call (95 % interval 2000 to 2100)" in one(found, "leak")["text"]


def test_int8_that_is_slower_is_told() -> None:
    float32 = {**flat(1000, name="float32"), "precision": "float32"}
    slow, fast = ({**flat(n, name="int8"), "precision": "int8"} for n in (1600, 600))
    found = judged(float32, slow)
    assert one(found, "int8_slower")["text"] == "int8: takes 1.60 times as long as float32 here"
    assert "int8_slower" not in codes(judged(float32, fast))


# what the machine says


@pytest.mark.parametrize(
    ("environment", "code", "severity"),
    [
        ({"load1": 4.5}, "load_above_cpus", "noisy"),
        ({"steal_share": 0.02}, "steal", "noisy"),
        ({"steal_share": 0.2}, "steal", "unstable"),
        ({"pressure_cpu_some_us": 10_000_000}, "pressure", "info"),
        ({"governor": "ondemand"}, "governor", "info"),
        ({"samples": None}, "no_sensors", "info"),
    ],
)
def test_conditions(environment: dict[str, Any], code: str, severity: str) -> None:
    found = judged(flat(), environment=environment)
    assert codes(found) == {code}
    assert one(found, code)["severity"] == severity
    assert one(found, code)["subject"] is None
    assert found["grade"] == ("stable" if severity == "info" else severity)


def test_a_container_without_sensors_is_not_noisy_for_that() -> None:
    blind = dict.fromkeys(
        (
            "governor",
            "load1",
            "samples",
            "thermal_throttles",
            "throttled_periods",
            "steal_share",
            "pressure_cpu_some_us",
        )
    )
    assert judged(flat(), environment={**blind, "container": "docker"})["grade"] == "stable"


def test_stops_for_the_quota_count_by_what_they_hit() -> None:
    subject = flat()
    assert one(judged(subject, environment={"throttled_periods": 3}), "throttled")["severity"] == "info"
    subject["processes"][0]["events"]["throttled_ns"] = [[5, 500]]
    assert one(judged(subject, environment={"throttled_periods": 3}), "throttled")["severity"] == "noisy"
    subject["processes"][0]["events"]["throttled_ns"] = [[5, 50_000]]
    assert one(judged(subject, environment={"throttled_periods": 3}), "throttled")["severity"] == "unstable"
    subject["processes"][1]["unread"]["throttled_ns"] = "no cpu.stat"
    assert one(judged(subject, environment={"throttled_periods": 3}), "throttled")["severity"] == "unstable"


def test_threads_and_instructions() -> None:
    assert codes(judged(flat(), threads_requested=4)) == {"threads_limited"}
    int8 = {**flat(), "precision": "int8", "audit": {}}
    assert codes(judged(int8, environment={"flags": ["avx2"]})) == {"isa_missing"}
    assert codes(judged(int8, environment={"flags": ["asimddp"]})) == set()
    assert codes(judged(int8, environment={"flags": None})) == set()
    assert codes(judged(flat(), environment={"flags": ["avx2"]})) == set()
    found = judged(flat(), environment={"flags": ["neon"], "cpu": "Cortex-A72"}, isa=["neon", "asimddp"])
    assert "(Cortex-A72) lacks asimddp" in one(found, "isa_missing")["text"]
    assert found["grade"] == "stable"


# advice depends on what was done


def test_advice_depends_on_what_was_done() -> None:
    wide = flat()
    for process in wide["processes"]:
        process["steady_ns"] = [1000, 1400] * 200
    assert "--no-pin" in one(judged(wide, affinity=None), "high_cv")["advice"]
    refused = {"missing": {"affinity": "sched_setaffinity: denied"}}
    assert "denied" in one(judged(wide, affinity=None, environment=refused), "high_cv")["advice"]
    assert "container" in one(judged(wide, environment={"container": "docker"}), "high_cv")["advice"]
    assert "nothing else runs" in one(judged(wide), "high_cv")["advice"]


def test_advice_follows_the_cause_of_the_slow_calls() -> None:
    """Half of the calls wait for the CPU."""
    subject = flat()
    for process in subject["processes"]:
        process["steady_ns"] = [1000, 1800] * 200
        process["events"]["wait_ns"] = [[i, 700] for i in range(1, 400, 2)]
    found = one(judged(subject), "high_cv")
    assert "(2000 of 2000 far calls: preempted)" in found["text"]
    assert "reserve the CPU" in found["advice"]
    assert "reserve the CPU" in one(judged(subject, affinity=None), "high_cv")["advice"]
    assert set(reasons.REMEDIES) == set(causes.CAUSES) - {"unknown"}


def test_advice_says_what_to_increase() -> None:
    apart = simulate.subject(simulate.process_effect(random.Random(1), 10, 150))
    assert "--effort release runs 20" in one(judged(apart), "too_few_processes")["advice"]
    quick = simulate.subject(simulate.process_effect(random.Random(1), 3, 150))
    assert "--effort standard runs 10" in one(judged(quick, effort="quick"), "too_few_processes")["advice"]
    assert "highest" in one(judged(apart, effort="release"), "too_few_processes")["advice"]
    rng = random.Random(3)
    ragged = simulate.subject([[simulate.ns(rng.gauss(0, 0.3)) for _ in range(40)] for _ in range(10)])
    assert "run longer" in one(judged(ragged), "too_few_processes")["advice"]


def test_efforts_are_those_of_the_protocol() -> None:
    assert {name: effort.processes for name, effort in protocol.EFFORTS.items()} == reasons.PROCESSES


def test_results_are_derived_once() -> None:
    made_up = measurement(flat())
    found = derive(made_up)
    assert found["stability"] == grade(made_up)
    assert found["summaries"] == {
        "s": runtime_bench.summarize(
            made_up["subjects"][0], made_up["load"], made_up["environment"], made_up["affinity"]
        )
    }
    carried = {**made_up, "results": {"summaries": {}, "stability": {}}}
    assert results(carried) is carried["results"]


def test_a_measurement_of_the_first_schema_is_graded() -> None:
    """Bundles that were built earlier hold it: no counters, no times, no load."""
    subject = flat()
    kept = ("phases_ns", "warmup_ns", "warmup_calls", "warmup_stable", "steady_ns", "every", "cut_short", "error")
    subject["processes"] = [{key: p[key] for key in kept} for p in subject["processes"]]
    subject = {key: subject[key] for key in ("name", "file", "sha256", "runtime", "processes", "memory")}
    old = {
        key: v for key, v in measurement(flat()).items() if key not in ("affinity", "load", "seconds", "cut", "clock")
    }
    environment = {"load1": 0.1, "cpus_online": 2, "governor": None, "throttled_periods": 0, "missing": {}}
    found = grade({**old, "subjects": [subject], "environment": environment})
    assert found["grade"] == "stable"
    assert codes(found) == {"no_sensors"}
