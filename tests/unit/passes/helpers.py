"""Models as ONNX text, weights as arrays, and a numeric oracle that can fail."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from edgeopt.model import Model, Origin, assign_keys
from edgeopt.passes import Applied, Pass, apply
from edgeopt.passes.infer_shapes import INFER_SHAPES


def from_proto(proto: onnx.ModelProto, *, valid: bool = True) -> Model:
    """A Model with keys, as a loader makes it."""
    if valid:
        onnx.checker.check_model(proto, full_check=True)
    model = ir.from_proto(proto)
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("model.onnx"), format="onnx", files=()))


def build(text: str, opset: int = 20, ir_version: int = 9, **arrays: np.ndarray) -> Model:
    """Parse ``name (inputs) => (outputs) {nodes}`` and add ``arrays`` as initializers."""
    imports = f'["" : {opset}, "acme" : 1]' if "acme." in text else f'["" : {opset}]'
    proto = parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return from_proto(proto)


def inferred(text: str, opset: int = 20, ir_version: int = 9, **arrays: np.ndarray) -> Model:
    """``build``, with the types and shapes of all values, as the fusions find them."""
    return apply(INFER_SHAPES, build(text, opset, ir_version, **arrays)).model


def ops(model: Model) -> Counter[str]:
    return Counter(node.op_type for node in model.nodes())


def node(model: Model, op: str, index: int = 0) -> ir.Node:
    return [n for n in model.nodes() if n.op_type == op][index]


def initializer(model: Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def feeds(model: Model, seed: int, **symbols: int) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dims default to 2."""
    rng = np.random.default_rng(seed)
    made = {}
    for spec in model.inputs:
        shape = [d if isinstance(d, int) else symbols.get(d, 2) for d in spec.shape]
        if spec.dtype == "bool":
            made[spec.name] = np.array(rng.integers(0, 2, shape), np.bool_)
        elif spec.dtype.startswith("int"):
            made[spec.name] = np.array(rng.integers(0, 4, shape), spec.dtype)
        else:
            made[spec.name] = np.array(rng.normal(size=shape), spec.dtype)
    return made


def runner(model: Model) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Runs in onnxruntime without its own graph rewrites; float64 Convs exist only in ONNX's reference."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    proto = ir.to_proto(model.ir)
    names = [o.name for o in model.outputs]
    if any(spec.dtype == "float64" for spec in model.inputs):
        reference = ReferenceEvaluator(proto)
        return lambda inputs: dict(zip(names, reference.run(None, inputs), strict=True))
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return lambda inputs: dict(
        zip(names, session.run(None, {n: a for n, a in inputs.items() if n in wanted}), strict=True)
    )


def run(model: Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run once."""
    return runner(model)(inputs)


def assert_equal(before: Model, after: Model, tolerance: float, trials: int = 2, **symbols: int) -> None:
    """Same interface, valid, and max|difference| <= tolerance * max|reference| for every output."""
    proto = ir.to_proto(after.ir)
    if not any(n.domain for n in after.nodes()):
        onnx.checker.check_model(proto, full_check=True)
    assert [(s.name, s.dtype) for s in after.outputs] == [(s.name, s.dtype) for s in before.outputs]
    keys = [n.metadata_props.get("edgeopt.key") for n in after.nodes()]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    run_before, run_after = runner(before), runner(after)
    for seed in range(trials):
        inputs = feeds(before, seed, **symbols)
        expected, actual = run_before(inputs), run_after(inputs)
        for name, reference in expected.items():
            assert actual[name].shape == reference.shape, name
            assert actual[name].dtype == reference.dtype, name
            if reference.dtype.kind != "f":
                assert np.array_equal(actual[name], reference), name
                continue
            scale = float(np.abs(reference).max(initial=0.0)) or 1.0
            error = float(np.abs(actual[name].astype(np.float64) - reference).max(initial=0.0))
            assert error <= tolerance * scale, f"{name}: {error / scale:.3g}"


def check(pass_: Pass, model: Model, count: int, **symbols: int) -> Applied:
    """Apply, assert the count, and compare before and after at the tolerance of the pass."""
    before = ir.to_proto(model.ir).SerializeToString()
    applied = apply(pass_, model)
    assert applied.count == count, applied.reason
    assert ir.to_proto(model.ir).SerializeToString() == before, "the model passed in was edited"
    if count == 0:
        assert applied.model is model
    else:
        assert_equal(model, applied.model, pass_.tolerance, **symbols)
    return applied


def apply_all(passes: tuple[Pass, ...], model: Model) -> Model:
    for pass_ in passes:
        model = apply(pass_, model).model
    return model


def rand(seed: int, *shape: int, low: float = -1.0, high: float = 1.0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@functools.cache
def node_cases() -> dict[str, Any]:
    """All node cases of the standard by name. They can be collected once a process, and then only all at once."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}
