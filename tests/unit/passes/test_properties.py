"""The law of the whole: whatever the graph, all passes together keep its meaning."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.backends import onnxruntime as backend
from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE, Pass, apply
from edgeopt.passes.lower_opset import lower_opset
from edgeopt.target import Target, load_target

from .helpers import apply_all, assert_equal, from_proto, ops
from .sketches import numbers_of, sketch_of

GRAPHS, BATCH = 500, 50
TOLERANCE = 2e-4
"""Of all passes together; each one is held to its own where it is built."""


def passes(target: Target, opset: int) -> tuple[Pass, ...]:
    own = tuple(p for p in backend.passes(target) if not p.name.startswith("lower-opset"))
    return (*NORMALIZE, *FUSIONS, *own, lower_opset(opset))


def walked(model: Model, steps: tuple[Pass, ...], target: Target) -> Model:
    for pass_ in steps:
        model = apply(pass_, model, target).model
    return model


def blame(model: Model, steps: tuple[Pass, ...], target: Target) -> str:
    """The first pass after which the outputs differ."""
    start = model
    for pass_ in steps:
        before, model = model, apply(pass_, model, target).model
        if model is before:
            continue
        try:
            assert_equal(start, model, TOLERANCE, trials=1)
        except Exception as error:  # noqa: BLE001 - the runtime may refuse the graph in its own words
            return f"{pass_.name}: {str(error)[:200]}"
    return "no single pass"


class Seen(NamedTuple):
    """What became of one random graph."""

    fault: str
    before: int
    after: int
    changed: tuple[str, ...]


@functools.cache
def seen(seed: int) -> Seen:
    """All passes on the graph of ``seed``, for one of the targets and opsets; made once for every test."""
    model = from_proto(sketch_of(numbers_of(seed)), valid=False)
    target, opset = targets()[seed % 3], (19, 17, 16, 13)[seed % 4]
    steps, after, changed, fault = passes(target, opset), model, [], ""
    try:
        for pass_ in steps:
            applied = apply(pass_, after, target)
            after = applied.model
            if applied.count:
                changed.append(pass_.name)
        assert_equal(model, after, TOLERANCE, trials=1)
    except Exception as error:  # noqa: BLE001 - every fault of a batch is told, with the pass that made it
        fault = f"graph {seed}: {blame(model, steps, target)} ({str(error)[:80]})"
    return Seen(fault, ops(model).total(), ops(after).total(), tuple(changed))


@functools.cache
def targets() -> tuple[Target, ...]:
    """An Arm board, an x86 level, and a board whose runtime is old."""
    board = load_target("raspberry-pi-5")
    old = dataclasses.replace(board, opset_max=17, ir_version_max=8, runtime={"onnxruntime": "1.16.3"})
    return board, load_target("x86-avx512-vnni"), old


@pytest.fixture(scope="module")
def target() -> Target:
    return targets()[0]


@pytest.mark.parametrize("batch", range(GRAPHS // BATCH))
def test_all_passes_keep_the_meaning_of_random_graphs(batch: int) -> None:
    faults = [seen(seed).fault for seed in range(batch * BATCH, (batch + 1) * BATCH)]
    assert not any(faults), "\n".join(filter(None, faults))


def test_the_random_graphs_are_valid_and_hold_what_the_passes_look_for() -> None:
    """The property means nothing if the graphs are all trivial: of the passes that rewrite, nearly all must."""
    for seed in range(120):
        from_proto(sketch_of(numbers_of(seed)))  # the checker of onnx looks at each
    first = [seen(seed) for seed in range(120)]
    assert sum(one.after for one in first) < 0.6 * sum(one.before for one in first)
    idle = {p.name for p in (*NORMALIZE, *FUSIONS)}.difference(*(one.changed for one in first))
    assert len(idle) <= 8, idle
    every = Counter(name for seed in range(GRAPHS) for name in seen(seed).changed)
    assert every["lower-opset-13"] > 100


def test_nothing_is_left_that_normalizing_removes(target: Target) -> None:
    for seed in range(40):
        after = apply_all(NORMALIZE, from_proto(sketch_of(numbers_of(seed)), valid=False))
        left = {n.op_type for n in after.nodes() if not any(out.is_graph_output() for out in n.outputs)}
        in_branches = {n.op_type for n in after.nodes() if n.graph is not after.graph}
        assert not {"Constant", "Identity", "Dropout"} & (left - in_branches), seed


def _scale_a_bias(model: ir.Model) -> int:
    """The planted error: one weight of the network changes by a hundredth."""
    for value in model.graph.initializers.values():
        array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
        if array.dtype == np.float32 and array.size > 3 and value.uses():
            value.const_value = ir.Tensor(np.asarray(array * 1.01))
            return 1
    return 0


def test_a_planted_wrong_pass_is_caught_and_named(target: Target) -> None:
    wrong = Pass(name="wrong", rewrite=_scale_a_bias, tolerance=1e-5)
    caught = 0
    for seed in range(20):
        model = from_proto(sketch_of(numbers_of(seed)), valid=False)
        steps = (*NORMALIZE, wrong, *FUSIONS)
        try:
            assert_equal(model, walked(model, steps, target), TOLERANCE, trials=1)
        except AssertionError:
            caught += 1
            assert blame(model, steps, target).startswith("wrong: ")
    assert caught >= 10  # a norm behind a weight hides its scale
