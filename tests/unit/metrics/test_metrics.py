"""Every metric against its definition by brute force, published examples, and laws that it must keep."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.errors import CalibrationError
from edgeopt.metrics import MetricSpec, Pair, named, scorer
from edgeopt.metrics.auc import roc_auc
from edgeopt.metrics.choices import in_top_k
from edgeopt.metrics.correlation import pearson, pooled, ranks
from edgeopt.metrics.text import edit_distance, greedy

LEVELS = st.lists(st.integers(-4, 4), min_size=2, max_size=12)


def figure(spec: MetricSpec, outputs: list[np.ndarray], labels: list[object], **given: object) -> float:
    """The metric over samples with one output each."""
    found = scorer(spec, **given)
    rows = np.array([found.reduce({"y": y}, {}, label) for y, label in zip(outputs, labels, strict=True)], np.float64)
    return found.prepare(rows)(np.ones(len(rows)))


def one(value: float) -> np.ndarray:
    return np.array([[value]], np.float32)


# top-k and accuracy


@given(LEVELS, st.integers(1, 5), st.data())
def test_top_k_counts_a_tie_against_the_label(scores: list[int], k: int, data: st.DataObject) -> None:
    label = data.draw(st.integers(0, len(scores) - 1))
    ahead = sum(s >= scores[label] for i, s in enumerate(scores) if i != label)
    assert in_top_k(np.array(scores, float), label, k) == (ahead < k)


@given(LEVELS, st.integers(1, 4), st.randoms())
def test_top_k_does_not_depend_on_the_order_of_classes(scores: list[int], k: int, random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)
    moved = np.array([scores[i] for i in order], float)
    for label in range(len(scores)):
        assert in_top_k(np.array(scores, float), label, k) == in_top_k(moved, order.index(label), k)


def test_top_1_and_top_2_in_numbers_and_nan_is_wrong() -> None:
    rows = [np.float32([[3, 2, 1]]), np.float32([[1, 3, 3]]), np.float32([[np.nan, 2, 1]])]
    assert figure(named("top1"), rows, [0, 1, 1]) == pytest.approx(1 / 3)
    assert figure(named("top2"), rows, [0, 1, 1]) == 1.0
    assert figure(named("top2"), rows, [0, 1, 0]) == pytest.approx(2 / 3)


def test_accuracy_takes_the_threshold_itself_as_positive() -> None:
    spec = MetricSpec(name="accuracy", params={"threshold": 0.25})
    assert figure(spec, [one(0.25), one(0.2), one(0.9), one(np.nan)], [1, 1, 1, 0]) == 0.75


# F1


def f1_by_hand(answers: list[int], labels: list[int], positive: int) -> float:
    tp = sum(a == positive == t for a, t in zip(answers, labels))
    fp = sum(a == positive != t for a, t in zip(answers, labels))
    fn = sum(t == positive != a for a, t in zip(answers, labels))
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_f1_by_brute_force(pairs: list[tuple[int, int]]) -> None:
    answers, labels = [a for a, _ in pairs], [t for _, t in pairs]
    outputs = [np.eye(4, dtype=np.float32)[a : a + 1] for a in answers]
    seen = sorted({*answers, *labels})
    macro = np.mean([f1_by_hand(answers, labels, c) for c in seen])
    assert figure(MetricSpec(name="f1", params={"average": "macro"}), outputs, labels) == pytest.approx(macro)
    assert figure(named("f1"), outputs, labels) == pytest.approx(f1_by_hand(answers, labels, 1))


def test_f1_a_tie_is_an_answer_of_no_class() -> None:
    tie = np.float32([[0, 2, 2]])
    macro = MetricSpec(name="f1", params={"average": "macro"})
    assert figure(macro, [tie, np.float32([[0, 3, 0]])], [1, 1]) == pytest.approx(2 / 3)


# AUC


def auc_by_pairs(scores: list[float], labels: list[int]) -> float:
    wins = [
        1.0 if p > n else 0.5 if p == n else 0.0
        for (p, a), (n, b) in itertools.product(zip(scores, labels), repeat=2)
        if a and not b
    ]
    return sum(wins) / len(wins)


SCORED = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=2, max_size=25).filter(
    lambda pairs: len({t for _, t in pairs}) == 2
)


@given(SCORED)
def test_auc_is_the_share_of_pairs_won_a_tie_being_half(pairs: list[tuple[int, int]]) -> None:
    scores, labels = [float(s) for s, _ in pairs], [t for _, t in pairs]
    assert figure(named("auc"), [one(s) for s in scores], labels) == pytest.approx(auc_by_pairs(scores, labels))


@given(SCORED)
def test_auc_laws(pairs: list[tuple[int, int]]) -> None:
    """A monotone map changes nothing, the opposite order gives the rest to 1, weights are repetitions."""
    scores, good = np.array([float(s) for s, _ in pairs]), np.array([t == 1 for _, t in pairs])
    ones = np.ones(len(pairs))
    area = roc_auc(scores, good)(ones)
    assert roc_auc(np.exp(scores / 3) - 7, good)(ones) == pytest.approx(area)
    assert roc_auc(-scores, good)(ones) == pytest.approx(1 - area)
    weights = np.arange(1, len(pairs) + 1)
    repeated = roc_auc(np.repeat(scores, weights), np.repeat(good, weights))(np.ones(weights.sum()))
    assert roc_auc(scores, good)(weights.astype(float)) == pytest.approx(repeated)


def test_auc_nan_counts_against_and_one_class_is_undefined() -> None:
    assert figure(named("auc"), [one(np.nan), one(0.1), one(0.9), one(0.2)], [1, 0, 1, 0]) == 0.5
    assert math.isnan(figure(named("auc"), [one(1), one(2)], [1, 1]))


def test_auc_of_a_planted_error_is_seen() -> None:
    scores = np.r_[np.linspace(0, 1, 50), np.linspace(0.5, 1.5, 50)]
    good = np.arange(100) >= 50
    swapped = scores.copy()
    swapped[[0, 99]] = swapped[[99, 0]]
    assert roc_auc(swapped, good)(np.ones(100)) < roc_auc(scores, good)(np.ones(100)) - 0.01


# CER


WORDS = st.lists(st.integers(1, 4), max_size=9)


def distance_by_hand(a: list[int], b: list[int]) -> int:
    if not a or not b:
        return len(a) + len(b)
    same = distance_by_hand(a[1:], b[1:]) + (a[0] != b[0])
    return min(same, distance_by_hand(a[1:], b) + 1, distance_by_hand(a, b[1:]) + 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=5), st.lists(st.integers(1, 3), max_size=5))
def test_edit_distance_by_recursion(a: list[int], b: list[int]) -> None:
    assert edit_distance(a, b) == distance_by_hand(a, b)


@given(WORDS, WORDS, WORDS)
def test_edit_distance_is_a_metric(a: list[int], b: list[int], c: list[int]) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


def test_edit_distance_of_published_examples() -> None:
    for a, b, wanted in (("kitten", "sitting", 3), ("saturday", "sunday", 3), ("intention", "execution", 5)):
        assert edit_distance([ord(c) for c in a], [ord(c) for c in b]) == wanted


def path(*steps: int, classes: int = 5) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[list(steps)][None]


def test_greedy_decoding_joins_runs_and_drops_blanks() -> None:
    assert greedy(path(0, 1, 1, 0, 1, 2, 2, 0)[0], 0) == (1, 1, 2)
    assert greedy(path(0, 0, 0)[0], 0) == ()
    assert greedy(path(4, 4, 1, 4)[0], 4) == (1,)


def test_cer_in_numbers_with_charset_blank_and_axes() -> None:
    charset = ["a", "b", "ch", " "]
    first = MetricSpec(name="cer", params={"blank": 0, "charset": True})
    outputs = [path(1, 0, 1, 2), path(3, 3, 0, 4, 1)]  # "aab" and "ch a"
    assert figure(first, outputs, ["aab", "ch a"], charset=charset) == 0
    assert figure(first, outputs, ["ab", "ch?a"], charset=charset) == pytest.approx(2 / 5)  # "ch" is one class
    last = MetricSpec(name="cer", params={"blank": 4, "axes": "TBC"})
    assert figure(last, [path(0, 4, 1).transpose(1, 0, 2)], [(0, 1, 1)]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("output", "label", "charset", "words"),
    [
        (path(0, 1), "a", ["a", "b"], "the charset has 2 classes and the blank, and output y has 5"),
        (path(0, 1), 3, ["a"] * 4, "a label is 3, wanted a text"),
        (path(0, 1), "a", None, "wanted class indices"),
        (path(0, 1), "", ["a", "b", "c", "d"], "a text of 0 characters"),
        (one(1), "a", ["a", "b", "c", "d"], "wants scores with the axes BTC"),
    ],
)
def test_cer_refuses(output: np.ndarray, label: object, charset: list[str] | None, words: str) -> None:
    with pytest.raises(CalibrationError, match=words.replace("(", r"\(")):
        figure(named("cer"), [output], [label], charset=charset)


# Pearson and Spearman


NUMBERS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=15).filter(
    lambda pairs: len({x for x, _ in pairs}) > 1 and len({y for _, y in pairs}) > 1
)


@given(NUMBERS)
def test_pearson_is_numpys_and_spearman_is_pearson_of_mean_ranks(pairs: list[tuple[int, int]]) -> None:
    x, y = (np.array(v, float) for v in zip(*pairs))
    outputs, labels = [one(v) for v in x], [float(v) for v in y]
    assert figure(named("pearson"), outputs, labels) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)

    def by_hand(values: np.ndarray) -> np.ndarray:
        return np.array([np.mean([i + 1 for i, v in enumerate(np.sort(values)) if v == own]) for own in values])

    ones = np.ones(len(x))
    assert ranks(x, ones) == pytest.approx(by_hand(x))
    wanted = np.corrcoef(by_hand(x), by_hand(y))[0, 1]
    assert figure(named("spearman"), outputs, labels) == pytest.approx(wanted, abs=1e-9)
    # of the ranks themselves, and under a monotone map, it is the same
    again = [one(v) for v in by_hand(x)]
    assert figure(named("spearman"), again, labels) == pytest.approx(wanted, abs=1e-9)
    assert figure(named("spearman"), [one(v**3 + 2) for v in x], labels) == pytest.approx(wanted, abs=1e-9)


@given(NUMBERS, st.data())
def test_weights_are_repetitions(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    x, y = (np.array(v, float) for v in zip(*pairs))
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x))))
    many_x, many_y = np.repeat(x, weights), np.repeat(y, weights)
    found = pearson(x, y, weights.astype(float))
    assert found == pytest.approx(pearson(many_x, many_y, np.ones(len(many_x))), abs=1e-9, nan_ok=True)
    counted = weights > 0
    assert ranks(x, weights.astype(float))[counted] == pytest.approx(
        [ranks(many_x, np.ones(len(many_x)))[np.flatnonzero(many_x == v)[0]] for v in x[counted]]
    )


def test_spearman_of_a_published_example() -> None:
    """Hours of TV and IQ of ten people: rho = -29/165."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert figure(named("spearman"), [one(v) for v in iq], [float(h) for h in hours]) == pytest.approx(-29 / 165)


def test_constant_answers_correlate_with_nothing_and_constant_scores_are_undefined() -> None:
    assert figure(named("pearson"), [one(1), one(1), one(1)], [1.0, 2.0, 3.0]) == 0
    assert figure(named("spearman"), [one(np.nan), one(1), one(1)], [1.0, 2.0, 3.0]) == 0
    assert math.isnan(figure(named("pearson"), [one(1), one(2)], [1.0, 1.0]))


def test_pairs_compare_the_cosine_of_pooled_outputs() -> None:
    rng = np.random.default_rng(0)
    steps = [rng.standard_normal((1, 4, 3)).astype(np.float32) for _ in range(4)]
    mask = np.int64([[1, 1, 1, 0]])
    pairs = [Pair(0, 1, 0.9), Pair(2, 3, 0.1), Pair(0, 3, 0.4)]
    spec = MetricSpec(name="pearson", params={"pairs": True, "pool": "mean", "mask": "m"})
    found = scorer(spec, pairs=pairs, samples=4)
    rows = np.array([found.reduce({"y": y}, {"m": mask}, None) for y in steps])
    vectors = [y[0, :3].mean(axis=0, dtype=np.float64) for y in steps]
    cosine = [vectors[p.i] @ vectors[p.j] / np.linalg.norm(vectors[p.i]) / np.linalg.norm(vectors[p.j]) for p in pairs]
    wanted = np.corrcoef(cosine, [p.score for p in pairs])[0, 1]
    assert found.prepare(rows)(np.ones(4)) == pytest.approx(wanted)
    assert found.units is not None
    assert len(set(found.units.tolist())) == 4
    apart = scorer(spec, pairs=pairs[:2], samples=4)
    assert apart.units is not None
    assert apart.units[0] == apart.units[1] != apart.units[2]


def test_pooling() -> None:
    value = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    assert pooled(value, "first", None).tolist() == [0, 1, 2]
    assert pooled(value, "mean", None).tolist() == [1.5, 2.5, 3.5]
    assert pooled(value, "mean", np.int64([[0, 0]])) is None
    assert pooled(value, "none", None) is None


# maps, and errors of numbers


@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_miou_by_sets_of_pixels(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    scores = [rng.standard_normal((1, classes, 3, 4)).astype(np.float32) for _ in range(3)]
    labels = [rng.integers(0, classes + 1, (3, 4)) for _ in range(3)]
    labels = [np.where(m == classes, 255, m) for m in labels]
    said = np.concatenate([s[0].argmax(axis=0).ravel() for s in scores])
    true = np.concatenate([m.ravel() for m in labels])
    known = true != 255
    parts = []
    for value in range(classes):
        a, b = (set(np.flatnonzero((m == value) & known)) for m in (said, true))
        if a | b:
            parts.append(len(a & b) / len(a | b))
    spec = MetricSpec(name="miou", params={"ignore": 255})
    assert figure(spec, scores, labels) == pytest.approx(np.mean(parts))
    channels_last = [s.transpose(0, 2, 3, 1) for s in scores]
    last = MetricSpec(name="miou", params={"ignore": 255, "layout": "NHWC"})
    assert figure(last, channels_last, labels) == pytest.approx(np.mean(parts))


def test_miou_refuses_a_label_of_another_size_or_class() -> None:
    scores = [np.zeros((1, 2, 2, 2), np.float32)]
    with pytest.raises(CalibrationError, match=r"a label map is int64\[3, 2\]"):
        figure(named("miou"), scores, [np.zeros((3, 2), np.int64)])
    with pytest.raises(CalibrationError, match="classes 0 to 2, and the model has 2"):
        figure(named("miou"), scores, [np.int64([[0, 1], [2, 0]])])


def test_mae_and_rmse_are_over_all_numbers() -> None:
    outputs, labels = [np.float32([[1, 2, 3]]), np.float32([[0]])], [np.array([1.0, 2.0, 6.0]), 4]
    assert figure(named("mae"), outputs, labels) == pytest.approx(7 / 4)
    assert figure(named("rmse"), outputs, labels) == pytest.approx(math.sqrt(25 / 4))


def test_a_function_of_the_users_own() -> None:
    spec = MetricSpec(name="mine:close", params={"better": "lower"})
    found = scorer(spec, function=lambda outputs, label: abs(float(outputs["y"]) - label))
    assert (found.name, found.better, found.weighted_mean) == ("close", "lower", True)
    assert figure(spec, [one(1), one(2)], [1, 4], function=lambda o, t: abs(o["y"].item() - t)) == 1
    whole = figure(
        spec, [one(1), one(5)], [0, 0], function=lambda o, t: [o["y"].item(), t], score=lambda rows: rows[:, 0].max()
    )
    assert whole == 5
    with pytest.raises(CalibrationError, match="gives no number"):
        figure(spec, [one(1)], [1], function=lambda o, t: "much")
    for wrong in (None, float("nan"), float("inf")):
        with pytest.raises(CalibrationError, match=f"gives {wrong} for a sample, wanted a finite number"):
            figure(spec, [one(1)], [1], function=lambda o, t, wrong=wrong: wrong)
    with pytest.raises(CalibrationError, match="metric close raised ZeroDivisionError"):
        figure(spec, [one(1)], [1], function=lambda o, t: 1 / 0)
    with pytest.raises(CalibrationError, match="gives 2 numbers"):
        figure(spec, [one(1)], [1], function=lambda o, t: [1, 2])


@pytest.mark.parametrize(
    ("name", "output", "label", "words"),
    [
        ("top1", np.zeros((1, 2, 3), np.float32), 0, r"wants one row of scores, and output y is float32\[1, 2, 3\]"),
        ("top1", np.zeros((1, 3), np.float32), 3, "a label is 3, and the model has 3 classes"),
        ("accuracy", np.zeros((1, 2), np.float32), 0, "wants one score a sample"),
        ("auc", one(0), 2, "a label is 2, and the model has 2 classes"),
        ("auc", np.zeros((1, 2, 2), np.float32), 0, "wants one score, or a row"),
        ("f1", np.zeros((1, 2, 2), np.float32), 0, "wants one score or one row"),
        ("pearson", np.zeros((1, 2), np.float32), 0.5, "one number a sample, or pairs"),
        ("mae", np.zeros((1, 2), np.float32), 1.0, r"label of shape \[\], output y of \[1, 2\]"),
        ("rmse", one(0), "x", "wanted numbers"),
        ("miou", one(0), 0, "a map of scores"),
    ],
)
def test_outputs_and_labels_that_do_not_fit_are_refused(
    name: str, output: np.ndarray, label: object, words: str
) -> None:
    with pytest.raises(CalibrationError, match=words):
        figure(named(name), [output], [label])


def test_an_output_is_chosen_by_name() -> None:
    spec = MetricSpec(name="top1", params={"output": "z"})
    found = scorer(spec)
    assert found.reduce({"y": one(0), "z": np.float32([[0, 1]])}, {}, 1) == (1.0, 1.0)
    with pytest.raises(CalibrationError, match='the model has no output "z"'):
        found.reduce({"y": one(0)}, {}, 1)
