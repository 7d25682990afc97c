"""The contract: what apply() promises whatever the pass does."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.passes import FUSIONS, NORMALIZE, Pass, Refusal, Rewritten, apply
from edgeopt.passes._pass import describe
from edgeopt.passes.fold_batchnorm import FOLD_BATCHNORM

from .helpers import assert_equal, build, initializer, rand

RELU = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Relu(a) }"


def test_names_are_unique_and_kebab_case() -> None:
    names = [p.name for p in NORMALIZE + FUSIONS]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and "_" not in name for name in names)
    assert all(0 < p.tolerance <= 1e-4 for p in NORMALIZE + FUSIONS)


def test_refusing_pass_keeps_the_model_and_its_reason() -> None:
    model = build(RELU)
    applied = apply(Pass(name="no", rewrite=lambda m: 1, tolerance=0.0, refuses=lambda m, t: "not here"), model)
    assert (applied.model is model, applied.count, applied.reason) == (True, 0, "not here")


def test_pass_without_changes_keeps_the_model_even_when_it_edited_the_clone() -> None:
    model = build(RELU)

    def dirty(edited: ir.Model) -> int:
        edited.graph.name = "other"
        return 0

    applied = apply(Pass(name="dirty", rewrite=dirty, tolerance=0.0), model)
    assert applied.model is model
    assert applied.reason == "nothing to rewrite"
    assert model.graph.name == "g"


def test_refusals_become_one_sentence() -> None:
    refusals = (
        Refusal("a", "second consumer"),
        Refusal("b", "weights are not constant"),
        Refusal("c", "second consumer"),
    )
    text = "3 candidates refused: second consumer (a, c), weights are not constant (b)"
    assert describe(refusals) == text
    applied = apply(Pass(name="p", rewrite=lambda m: Rewritten(count=0, refusals=refusals), tolerance=0.0), build(RELU))
    assert applied.reason == text
    assert applied.refusals == refusals


def test_long_lists_are_cut() -> None:
    assert describe([Refusal(f"n{i}", "w") for i in range(5)]) == "5 candidates refused: w (n0, n1, n2 and 2 more)"
    assert describe([Refusal("n", "w")]) == "1 candidate refused: w (n)"
    assert describe([]) == ""


def test_pass_that_renames_an_output_is_a_bug_not_a_result() -> None:
    def rename(model: ir.Model) -> int:
        model.graph.outputs[0].name = "z"
        return 1

    with pytest.raises(EdgeoptError, match='pass "rename" changed the inputs or outputs'):
        apply(Pass(name="rename", rewrite=rename, tolerance=0.0), build(RELU))


def test_pass_that_drops_an_input_is_a_bug_not_a_result() -> None:
    def drop(model: ir.Model) -> int:
        model.graph.inputs.pop()
        return 1

    model = build("g (float[2] x, float[1] unused) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(EdgeoptError, match="inputs or outputs"):
        apply(Pass(name="drop", rewrite=drop, tolerance=0.0), model)


def test_new_nodes_get_keys_and_old_ones_keep_theirs() -> None:
    def insert(model: ir.Model) -> int:
        last = model.graph[-1]
        assert last.inputs[0] is not None
        added = ir.node("Relu", inputs=[last.inputs[0]])
        model.graph.insert_before(last, added)
        last.replace_input_with(0, added.outputs[0])
        return 1

    model = build(RELU)
    keys = [n.metadata_props["edgeopt.key"] for n in model.nodes()]
    after = apply(Pass(name="insert", rewrite=insert, tolerance=0.0), model).model
    new = [n.metadata_props["edgeopt.key"] for n in after.nodes()]
    assert [new[0], new[2]] == keys
    assert new[1] not in keys


CONV_BN = """g (float[1,3,6,6] x) => (float[1,4,4,4] y) {
    c = Conv(x, w)
    y = BatchNormalization<epsilon = 0.1>(c, gamma, beta, mean, var)
}"""


def test_the_oracle_catches_a_planted_error() -> None:
    """A fold that forgets epsilon, and one that is off by 0.1 %, must not pass for equal."""
    model = build(
        CONV_BN, w=rand(0, 4, 3, 3, 3), gamma=rand(1, 4), beta=rand(2, 4), mean=rand(3, 4), var=rand(4, 4, low=0.5)
    )
    right = apply(FOLD_BATCHNORM, model).model
    assert_equal(model, right, FOLD_BATCHNORM.tolerance)

    off = right.clone()
    off.graph.initializers["w"].const_value = ir.Tensor(initializer(right, "w") * 1.001, name="w")
    with pytest.raises(AssertionError):
        assert_equal(model, off, FOLD_BATCHNORM.tolerance)

    forgets = model.clone()
    [bn] = [n for n in forgets.nodes() if n.op_type == "BatchNormalization"]
    bn.attributes.pop("epsilon")
    with pytest.raises(AssertionError):
        assert_equal(model, apply(FOLD_BATCHNORM, forgets).model, FOLD_BATCHNORM.tolerance)
