"""A float32 model in float16: half the bytes, checked on real inputs.

Inputs and outputs keep their types. What float16 cannot hold stays in float32, each operator with its reason: see
``half_rules``. The result is compared with the float model; operators that lose too much go back to float32, and a
model that stays off is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Set
from typing import Literal

import numpy as np
import onnx_ir as ir

from edgeopt.errors import ModelError, QualityError, ToolchainError
from edgeopt.interpreter import Feeds, Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize import half_graph, half_rules
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.magnitudes import is_single, look
from edgeopt.quantize.placement import Placement, keys_of
from edgeopt.target import Target

LOOKED_AT = 32
"""Samples that ranges and the comparison are taken from."""

OFF = 1e-2
"""Error of an output, relative to its largest magnitude, above which operators are sent back to float32."""

REFUSED = 0.1
"""Above this the model is refused. In between a note says so: a deep network adds up many small errors."""

JUMP = 4.0
"""An operator whose result is this many times further off than what it reads loses precision itself."""

ROUNDS = 6
"""How often operators are sent back to float32 before the model is refused."""

KIND = "float16"
NO_BFLOAT16 = (
    "onnxruntime's CPU provider has no bfloat16 kernel for what computes (Conv, Gemm, MatMul, Add, Relu): nothing "
    "would run in bfloat16"
)
NO_GAIN = (
    "on x86 processors onnxruntime computes float16 in float32 and converts around every operator: float16 is for "
    "size, and for GPUs"
)


def to_half(
    model: Model,
    kind: Literal["float16", "bfloat16"],
    target: Target,
    samples: Callable[[], Iterable[Feeds]] | None,
    *,
    exclude: Set[str] = frozenset(),
    interface: bool = False,
) -> QuantizedModel:
    """The model with float16 weights and arithmetic, for onnxruntime.

    Args:
        target: its processor decides what the type brings there, which a note says.
        samples: makes the samples that show ranges and that the result is checked on; the first ``LOOKED_AT`` of them
            are used. Without any, operators whose range could be anything stay in float32, and nothing is checked.
        exclude: keys of nodes to leave alone.
        interface: give inputs and outputs the type as well.

    Returns:
        notes: by node key, why it computes in float32; under ``float16`` what the type brings on this target, and what
        it costs where that is more than 1 %.

    Raises:
        ToolchainError: bfloat16, which nothing here would run.
        ModelError: the model has no float32 tensors, or none that float16 could hold.
        QualityError: it is not finite, or more than 10 % off, whatever stays in float32.
    """
    if kind == "bfloat16":
        raise ToolchainError(NO_BFLOAT16, remedy="float16 has the same size; OpenVINO computes in bfloat16 when asked.")
    if not any(is_single(v) for node in model.nodes() for v in (*node.inputs, *node.outputs)):
        raise ModelError("the model has no float32 tensors: there is nothing to make smaller in float16")
    first = None if samples is None else lambda: itertools.islice(samples(), LOOKED_AT)
    seen = None if first is None else look(model, first)
    kept: dict[str, str] = {}
    best: tuple[float, QuantizedModel, str] | None = None
    for _ in range(ROUNDS):
        single = half_rules.reasons(model, seen, exclude, kept)
        made = half_graph.write(model, single, lambda n: not exclude.isdisjoint(keys_of(n)), interface=interface)
        if not any(v.dtype == ir.DataType.FLOAT16 for g in made.ir.graphs() for v in _all_values(g)):
            raise ModelError(
                "no operator of the model can compute in float16, and no constant is worth storing in it",
                remedy="Ship the float32 model.",
            )
        result = _result(made, model, single, target.arch)
        if first is None:
            return result
        wrong = _worst(model, made, first)
        if wrong.error <= OFF:
            return result
        if best is None or wrong.error < best[0]:
            best = (wrong.error, result, wrong.why)
        more = _culprits(model, made, wrong.feeds, single)
        if not more:
            break
        kept |= more
    assert best is not None
    error, result, why = best
    if error > REFUSED:
        raise QualityError(
            f"in float16 {why}, whatever stays in float32",
            remedy="Exclude the layers in question with --exclude, or ship float32 or int8.",
        )
    said = "; ".join(filter(None, (result.notes.get(KIND), why)))
    return dataclasses.replace(result, notes={**result.notes, KIND: said})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Worst:
    """The output that is furthest off, over all samples, and the sample on which it is."""

    error: float
    feeds: Feeds
    why: str


def _all_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.initializers.values(), *(v for node in graph for v in node.outputs)]


def _fed(feeds: Feeds, made: Model) -> Feeds:
    types = {spec.name: spec.dtype for spec in made.inputs}
    return {name: array.astype(types[name]) if name in types else array for name, array in feeds.items()}


def rounded(made: Model) -> Model:
    """The model for a trial on any processor: every float16 tensor is one there.

    Where onnxruntime has no float16 kernel it computes in float32, and drops the casts to float16 and back between two
    such operators. It has one for Max, whose only input is its result, and uses it where two stand together.
    """
    changed = made.clone()
    for node in list(changed.graph.all_nodes()):
        assert isinstance(node.graph, ir.Graph)
        for value in node.outputs:
            uses = list(value.uses())
            if value.dtype != ir.DataType.FLOAT16 or not uses:
                continue
            pair = [ir.node("Max", [value])]
            pair.append(ir.node("Max", [pair[0].outputs[0]]))
            for index, same in enumerate(pair):
                out = same.outputs[0]
                out.name, out.type, out.shape = f"{value.name}/rounded{index}", value.type, value.shape
            for use in uses:
                use.node.replace_input_with(use.idx, pair[1].outputs[0])
            node.graph.insert_after(node, pair)
    return changed


def error_of(expected: np.ndarray, got: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude; infinite where only ``expected`` is finite."""
    if expected.dtype.kind != "f" or expected.size == 0:
        return 0.0
    finite = np.isfinite(expected)
    if not np.isfinite(got[finite]).all() or expected.shape != got.shape:
        return math.inf
    real, test = expected[finite].astype(np.float64), got[finite].astype(np.float64)
    peak = float(np.abs(real).max(initial=0.0))
    worst = float(np.abs(real - test).max(initial=0.0))
    return worst / peak if peak > 0 else (0.0 if worst == 0 else math.inf)


def _worst(model: Model, made: Model, samples: Callable[[], Iterable[Feeds]]) -> _Worst:
    reference, test = Interpreter(model), Interpreter(rounded(made))
    worst = _Worst(error=0.0, feeds={}, why="")
    for index, feeds in enumerate(samples()):
        expected, got = reference.run(feeds), test.run(_fed(feeds, made))
        for name, array in expected.items():
            error = error_of(array, got[name])
            if error > worst.error:
                how = "is not finite" if error == math.inf else f"is {error:.1%} of its peak off"
                worst = _Worst(error=error, feeds=feeds, why=f"output {name} {how} on sample {index}")
    return worst


def _culprits(model: Model, made: Model, feeds: Feeds, single: dict[str, str]) -> dict[str, str]:
    """The operators in float16 that lose most of the precision themselves, or make the first infinity."""
    names = [str(v.name) for node in model.graph for v in node.outputs if is_single(v) and not v.is_graph_output()]
    outputs = [spec.name for spec in model.outputs]
    there = {str(v.name) for node in made.graph for v in node.outputs}
    wanted = [n for n in (*names, *outputs) if n in there]
    expected = Interpreter(model, tensors=wanted).run(feeds)
    got = Interpreter(rounded(made), tensors=wanted).run(_fed(feeds, made))
    errors = {name: error_of(expected[name], got[name].astype(np.float64)) for name in wanted}
    scored: list[tuple[float, str]] = []
    for node in model.graph:
        key = node_key(node)
        if key in single:
            continue
        after = max((errors.get(str(v.name), 0.0) for v in node.outputs), default=0.0)
        before = max((errors.get(str(v.name), 0.0) for v in node.inputs if v is not None), default=0.0)
        if after == math.inf and before < math.inf:
            return {key: "it overflows on a sample"}
        if after > JUMP * max(before, 2.0**-12) and after < math.inf:
            scored.append((after / max(before, 2.0**-12), key))
    worst = sorted(scored, key=lambda found: (-found[0], found[1]))[: max(1, len(scored) // 4)]
    return {key: "it loses precision on a sample" for _, key in worst}


def _result(made: Model, model: Model, single: dict[str, str], arch: str) -> QuantizedModel:
    half = {
        node_key(n): "computes in float16"
        for n in model.nodes()
        if node_key(n) not in single and any(map(is_single, n.outputs))
    }
    return QuantizedModel(
        model=made,
        placement=Placement(
            int8=(),
            weight_only=(),
            stays_float={**half, **single},
            values=(),
            from_int8=frozenset(),
            same_scale=(),
            shared=(),
        ),
        weight_scale_counts={},
        notes={**single, **({KIND: NO_GAIN} if arch == "x86_64" else {})},
        precision=KIND,
    )
