"""Quality of B against A: paired over recorded outcomes or a set that both are run on, never made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeopt.bundle import JudgedOn, outcome_files
from edgeopt.comparing import Limits, Request, answers
from edgeopt.comparing.gates import judge
from edgeopt.comparing.markdown import quality_words
from edgeopt.comparing.sources import locate, open_artifact
from edgeopt.errors import BenchError, BundleError, CalibrationError
from edgeopt.outcomes import Outcomes, pack, paired_drop
from edgeopt.quality import compare
from tests.unit.comparing import bundles
from tests.unit.comparing.bundles import labelled_set, model, outcomes, scores

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime_bench.verify.require_runtime", lambda contract: {})


def recorded(tmp_path: Path, a: dict[str, bytes], b: dict[str, bytes], chosen: str = "") -> Json:
    roots = [bundles.make(tmp_path / name, outcomes=files) for name, files in (("a", a), ("b", b))]
    sides = [open_artifact(locate(Path(f"{root}{chosen}"))) for root in roots]
    return answers.recorded_quality(*sides)


def test_recorded_outcomes_are_paired_sample_by_sample(tmp_path: Path) -> None:
    a, b = [1] * 90 + [0] * 10, [1] * 80 + [0] * 10 + [0] * 5 + [1] * 5
    found = recorded(tmp_path, outcomes(a), outcomes(b))
    expected = paired_drop(np.array(a, bool), np.array(b, bool))
    assert (found["compared"], found["kind"], found["samples"]) == (True, "top1", 100)
    assert (found["lost"], found["gained"], found["drop"]) == (10, 5, pytest.approx(0.05))
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert found["set"] == "photos"


def test_pairs_are_narrower_than_two_shares() -> None:
    """12 of 400 lost and none gained is a drop; the shares of 92.5 and 89.5 % alone would not show it."""
    a = np.array([True] * 370 + [False] * 30)
    b = a.copy()
    b[:12] = False
    found = paired_drop(a, b)
    apart = 1.96 * np.sqrt(a.mean() * (1 - a.mean()) / 400 + b.mean() * (1 - b.mean()) / 400)
    assert found.low > 0 > found.drop - apart


ONES = [1] * 20
REASONS: dict[str, tuple[dict[str, bytes], dict[str, bytes], str]] = {
    "none": ({}, {}, "the bundle of A holds no outcomes"),
    "none in B": (outcomes(ONES), {}, "the bundle of B holds no outcomes"),
    "other precision": (outcomes(ONES, precision="float32"), outcomes(ONES), "of A holds no outcomes of int8"),
    "other kind": (outcomes(ONES), outcomes(ONES, kind="agreement"), "A was judged by top1 and B by agreement"),
    "other samples": (outcomes(ONES), outcomes(ONES, samples="6" * 64), "not on the same samples"),
    "other count": (outcomes(ONES), outcomes([1] * 21), "not on the same samples"),
    "other float model": (
        outcomes(ONES, kind="agreement"),
        outcomes(ONES, kind="agreement", source="9" * 64),
        "its own float model",
    ),
}


@pytest.mark.parametrize("what", REASONS)
def test_outcomes_that_do_not_pair_are_not_compared(tmp_path: Path, what: str) -> None:
    a, b, words = REASONS[what]
    found = recorded(tmp_path, a, b)
    assert found["compared"] is False
    assert words in found["reason"]


def test_agreement_with_one_float_model_pairs(tmp_path: Path) -> None:
    found = recorded(tmp_path, outcomes(ONES, kind="agreement"), outcomes([1] * 19 + [0], kind="agreement"))
    assert (found["compared"], found["drop"]) == (True, pytest.approx(0.05))


def test_damaged_outcomes_are_an_error_not_a_missing_figure(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="outcomes.json"):
        recorded(tmp_path, {"outcomes.json": b"{"}, outcomes(ONES))


def test_a_build_and_its_outcomes_agree() -> None:
    """What quality counts on the way is what the record holds."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((60, 1, 4)).astype(np.float32)
    test = reference + 0.8 * rng.standard_normal(reference.shape).astype(np.float32)
    labels = rng.integers(0, 4, 60)
    feeds = [{"i": np.array([i])} for i in range(60)]
    runs = [lambda f, v=values: {"y": v[int(f["i"][0])]} for values in (reference, test)]
    judged = compare(*runs, feeds, labels=labels, metric="top1")
    free = compare(*runs, feeds)
    assert judged.metric is not None
    assert judged.outcomes is not None
    assert free.outcomes is not None
    assert free.agreement is not None
    assert judged.outcomes.bits().tolist() == (test[:, 0].argmax(axis=1) == labels).tolist()
    assert judged.outcomes.bits().mean() == pytest.approx(judged.metric.artifact)
    assert free.outcomes.bits().mean() == pytest.approx(free.agreement.top1)
    assert (judged.outcomes.kind, free.outcomes.kind) == ("top1", "agreement")
    assert judged.outcomes.samples_sha256 != free.outcomes.samples_sha256
    again = compare(*runs, [{"i": np.array([i]) + 0} for i in range(60)], labels=labels, metric="top1")
    assert again.outcomes == judged.outcomes
    boxes = [lambda f: {"y": np.zeros((1, 4, 5), np.float32)}] * 2
    assert compare(*boxes, feeds).outcomes is None


# judged now

RIGHT = scores([3, 0, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 3, 0])
WORSE = scores([3, 0, 0, 0, 0], [0, 3, 0, 0, 0], [4, 0, 3, 0, 0], [0, 0, 0, 3, 3])


def now(tmp_path: Path, a: np.ndarray, b: np.ndarray, labels: list[int] | None, times: int = 5) -> Json:
    """Judge two models on the unit vectors 0 to 3, each some times."""
    files = [model(tmp_path / f"{name}.onnx", weights) for name, weights in (("a", a), ("b", b))]
    data = labelled_set(tmp_path / "set", [0, 1, 2, 3] * times, None if labels is None else labels * times)
    return answers.judge_now(*(open_artifact(locate(file)) for file in files), str(data))[0]


def test_a_labelled_set_judges_both_now(tmp_path: Path) -> None:
    found = now(tmp_path, RIGHT, WORSE, [0, 1, 2, 3])
    assert (found["kind"], found["a"], found["b"], found["drop"]) == ("top1", 1.0, 0.5, 0.5)
    assert (found["lost"], found["gained"], found["samples"]) == (10, 0, 20)
    assert found["low"] < 0.5 < found["high"]
    assert found["how"] == "judged now"


def test_both_sides_are_held_to_one_rule(tmp_path: Path) -> None:
    """A tie is wrong for A as it is for B: nobody gains by coming first."""
    tie = scores([3, 3, 0, 0, 0], [0, 3, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 3, 0])
    found = now(tmp_path, tie, tie, [0, 1, 2, 3])
    assert (found["a"], found["b"], found["drop"]) == (0.75, 0.75, 0)


def test_without_labels_the_answers_of_a_are_the_measure(tmp_path: Path) -> None:
    found = now(tmp_path, RIGHT, WORSE, None)
    assert (found["kind"], found["a"], found["b"]) == ("agreement with A", 1.0, 0.5)
    assert found["low"] == pytest.approx(0.272, abs=1e-3)  # Clopper and Pearson for 10 of 20
    assert found["high"] == pytest.approx(0.728, abs=1e-3)


def test_a_model_agrees_with_itself_ties_included(tmp_path: Path) -> None:
    found = now(tmp_path, WORSE, WORSE, None)
    assert (found["drop"], found["low"]) == (0, 0)
    assert 0 < found["high"] < 0.2


def test_nan_is_no_answer(tmp_path: Path) -> None:
    nan = RIGHT.copy()
    nan[0] = np.nan
    found = now(tmp_path, nan, nan, None)
    assert found["b"] == 0  # every product with NaN is NaN, also where the input is 0


def test_random_data_judges_nothing(tmp_path: Path) -> None:
    side = open_artifact(locate(model(tmp_path / "a.onnx", RIGHT)))
    with pytest.raises(CalibrationError, match="random data cannot judge"):
        answers.judge_now(side, side, "random")


def test_a_network_without_scores_is_not_compared_and_the_error_is_told(tmp_path: Path) -> None:
    sides = []
    for name, factor in (("a", 1.0), ("b", 1.1)):
        tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in ("x", "h")]
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 4])
        nodes = [
            helper.make_node("Mul", ["x", "f"], ["h"]),
            helper.make_node("Reshape", ["h", "s"], ["y"]),
        ]
        constants = [
            helper.make_tensor("f", TensorProto.FLOAT, [1], [factor]),
            helper.make_tensor("s", TensorProto.INT64, [3], [1, 2, 4]),
        ]
        graph = helper.make_graph(nodes, "g", tensors[:1], [out], constants)
        path = tmp_path / f"{name}.onnx"
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), str(path))
        sides.append(open_artifact(locate(path)))
    data = labelled_set(tmp_path / "set", [0, 1], None)
    found, _ = answers.judge_now(*sides, str(data))
    assert found["compared"] is False
    assert "SQNR of B against A 20.0 dB on 2 samples of units" in found["reason"]


def test_doubts_about_the_set_are_told(tmp_path: Path) -> None:
    side = open_artifact(locate(model(tmp_path / "a.onnx", RIGHT)))
    _, warnings = answers.judge_now(side, side, str(labelled_set(tmp_path / "set", [0], [0])))
    assert any("single sample" in text for text in warnings)


def test_a_recording_cannot_be_judged_on_a_set(tmp_path: Path) -> None:
    from edgeopt import comparing
    from tests.unit.recordings import recording

    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2)
    with pytest.raises(BenchError, match="--data judges two artifacts"):
        comparing.run(Request(a=a, b=b, limits=Limits(), data="x.toml"))


# other metrics


def valued(values: list[float], weights: list[float], **changes: Any) -> dict[str, bytes]:
    given: Json = {"kind": "CER", "samples_sha256": "5" * 64, "count": len(values), "right": b"", "better": "lower"}
    arrays = {"values": np.array(values, "<f4").tobytes(), "weights": np.array(weights, "<f4").tobytes()}
    seen = {"int8": Outcomes(**(given | (arrays if values else {}) | changes))}
    return outcome_files(JudgedOn(set_name="lines", set_sha256="3" * 64, source_sha256="4" * 64, outcomes=seen))


def test_values_of_samples_are_paired_by_their_weights(tmp_path: Path) -> None:
    weights = [10.0, 20.0, 5.0] * 20
    a, b = [0.1, 0.0, 0.2] * 20, [0.1, 0.05, 0.2] * 20
    found = recorded(tmp_path, valued(a, weights), valued(b, weights))
    assert (found["kind"], found["better"], found["unit"]) == ("CER", "lower", "share")
    assert found["a"] == pytest.approx(2 / 35)
    assert found["drop"] == pytest.approx(1 / 35)  # what B lost, although its figure is higher
    assert found["low"] < found["drop"] < found["high"]
    words = quality_words(found)
    assert words.startswith("CER: A 5.71 %, B 8.57 %; worse by +2.86 points, 95 % interval +")
    gates = judge(Limits(drop=0.01), {}, {}, found)
    assert gates[0]["state"] == "broken"
    assert "rise in CER +2.86 points" in gates[0]["text"]


def test_a_number_is_held_against_a_share_of_its_own_value(tmp_path: Path) -> None:
    weights = [1.0] * 30
    found = recorded(
        tmp_path,
        valued([2.0] * 30, weights, kind="MAE", unit="number"),
        valued([2.1, 2.05] * 15, weights, kind="MAE", unit="number"),
    )
    assert quality_words(found).startswith("MAE: A 2, B 2.075; worse by +0.075, 95 % interval +0.06")
    assert judge(Limits(drop=0.10), {}, {}, found)[0]["state"] == "held"
    broken = judge(Limits(drop=0.01), {}, {}, found)[0]
    assert broken["state"] == "broken"
    assert "rise in MAE +3.75 %" in broken["text"]


def test_an_index_is_compared_as_it_is(tmp_path: Path) -> None:
    weights = [1.0] * 30
    kind = {"kind": "likeness", "unit": "index", "better": "higher"}
    found = recorded(tmp_path, valued([0.5] * 30, weights, **kind), valued([0.46, 0.48] * 15, weights, **kind))
    assert quality_words(found).startswith("likeness: A 0.5000, B 0.4700; drop +0.0300, 95 % interval +0.02")
    assert judge(Limits(drop=0.05), {}, {}, found)[0]["state"] == "held"
    broken = judge(Limits(drop=0.01), {}, {}, found)[0]
    assert broken["state"] == "broken"
    assert "drop in likeness +0.0300" in broken["text"]
    assert broken["text"].endswith("; 0.01 allowed")


def test_samples_that_belong_together_widen_the_interval(tmp_path: Path) -> None:
    right, wrong = [1] * 200, [1] * 180 + [0] * 20
    groups = np.repeat(np.arange(10), 20).astype("<i4").tobytes()
    alone = paired_drop(np.array(right, bool), np.array(wrong, bool))
    files = [
        valued([], [], kind="top1", count=200, right=pack(bytearray(bits)), groups=groups) for bits in (right, wrong)
    ]
    found = recorded(tmp_path, *files)
    assert found["drop"] == pytest.approx(0.1)
    assert found["high"] - found["low"] > 1.5 * (alone.high - alone.low)


def test_a_metric_without_values_of_samples_says_so(tmp_path: Path) -> None:
    bits = {"kind": "agreement", "right": pack(bytearray(ONES)), "count": 20}
    a = valued([], [], **bits, judged_by="AUC")
    b = {"outcomes.json": a["outcomes.json"].replace(b"4" * 64, b"9" * 64)}
    found = recorded(tmp_path, a, b)
    assert found["compared"] is False
    assert "AUC has no value for a single sample" in found["reason"]
    assert "--data" in found["reason"]


def test_an_auc_is_judged_now_with_a_bootstrap(tmp_path: Path) -> None:
    files = [model(tmp_path / f"{name}.onnx", weights) for name, weights in (("a", RIGHT), ("b", WORSE))]
    data = labelled_set(tmp_path / "set", [0, 1, 2, 3] * 5, [0, 1, 0, 1] * 5)
    data.write_text(data.read_text().replace('"top1"', '{ name = "auc", positive = 1 }'))
    found = answers.judge_now(*(open_artifact(locate(file)) for file in files), str(data))[0]
    # the scores of class 1: 0, 3, 0, 0 in both
    assert (found["kind"], found["a"], found["b"], found["drop"]) == ("AUC", 0.75, 0.75, 0)
    assert "bootstrap" in found["method"]
    assert judge(Limits(drop=0.01), {}, {}, found)[0]["state"] == "held"
