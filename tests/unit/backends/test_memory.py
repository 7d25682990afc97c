"""Predicted memory: the arena by hand, laws on small networks, and real processes on one that is large enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.backends import onnxruntime, openvino
from edgeopt.backends.onnxruntime import memory as ort_memory
from edgeopt.backends.onnxruntime import packing
from edgeopt.backends.onnxruntime.arena import FIRST, Arena, Chunk
from edgeopt.backends.onnxruntime.schedule import schedule
from edgeopt.backends.shapes import shaped
from edgeopt.errors import ModelError
from edgeopt.memory import Predicted, Sizes
from edgeopt.memory.heap import Heap
from edgeopt.model import Model
from edgeopt.target import Target, load_target
from runtime_bench import memory, process
from tests.unit.passes.helpers import build, rand

MB = 1 << 20


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("host")


def wide(channels: int = 64, size: int = 112, batch: int | str = 1) -> Model:
    """Two convolutions of 3 x 3 behind one another, on images."""
    c = channels
    arrays = {"w0": rand(0, c, 3, 3, 3), "w1": rand(1, c, c, 3, 3), "b0": rand(2, c), "b1": rand(3, c)}
    text = f"""net (float[{batch},3,{size},{size}] x) => (float[{batch},{c},1,1] y) {{
        a = Conv<pads=[1,1,1,1]>(x, w0, b0) r = Relu(a) b = Conv<pads=[1,1,1,1]>(r, w1, b1) y = GlobalAveragePool(b)
    }}"""
    return build(text, **arrays)


def heavy() -> Model:
    """Three products with 4 MB of weights each, on 64 rows."""
    arrays = {f"w{i}": rand(i, 1024, 1024) for i in range(3)}
    text = """net (float[64,1024] x) => (float[64,1024] y) { a = MatMul(x, w0) b = MatMul(a, w1) y = MatMul(b, w2) }"""
    return build(text, **arrays)


def predict(backend: ModuleType, model: Model, target: Target, **options: str) -> Predicted:
    found: Predicted = backend.predict(model, target, options, quantized=False)
    return found


# --- the arena, by hand ---------------------------------------------------------------------------------------------


def test_regions_double_and_a_chunk_that_is_not_twice_as_large_is_not_split() -> None:
    heap = Heap(1 << 40)
    arena = Arena(heap)
    first = arena.allocate(600_000)
    second = arena.allocate(600_000)  # the first region has 1 MB, the rest of it is too small
    assert isinstance(first, Chunk)
    assert isinstance(second, Chunk)
    assert (first.region, first.size) == (0, FIRST)
    assert (second.region, second.size) == (1, 600_064)
    assert heap.resident <= 1_200_000 + 3 * 4096


def test_a_large_request_gets_a_region_of_the_next_power_of_two() -> None:
    arena = Arena(Heap(1 << 40))
    assert arena.allocate(3_211_264).size == 4 * MB
    again = arena.allocate(774_400)
    assert isinstance(again, Chunk)
    assert (again.region, again.size) == (1, 774_400)


def test_neighbours_join_when_they_are_free() -> None:
    arena = Arena(Heap(1 << 40))
    held = [arena.allocate(256) for _ in range(4)]
    for chunk in (held[1], held[3], held[2], held[0]):
        arena.free(chunk)
    whole = arena.allocate(FIRST)
    assert isinstance(whole, Chunk)
    assert (whole.region, whole.start, whole.size) == (0, 0, FIRST)


# --- rules of kernels -----------------------------------------------------------------------------------------------


def test_weights_in_blocks_are_padded_to_whole_blocks() -> None:
    nodes = {node.name: node for node in wide(channels=24).graph}
    first, second = (node for node in nodes.values() if node.op_type == "Conv")
    assert packing.blocked_weight(first, 16)[1] == 32 * 3 * 9 * 4  # three inputs stay as they are
    assert packing.blocked_weight(second, 16)[1] == 32 * 32 * 9 * 4


def test_a_convolution_without_its_own_integer_kernel_needs_its_result_in_int32() -> None:
    text = """net (uint8[1,3,8,8] q) => (float[1,16,8,8] y) {
        x = DequantizeLinear(q, s, zx) w = DequantizeLinear(wq, s, zw) y = Conv<pads=[1,1,1,1]>(x, w)
    }"""

    def work(channels: int) -> list[int]:
        arrays: dict[str, Any] = {"s": np.float32(0.1), "zx": np.uint8(0), "zw": np.int8(0)}
        arrays["wq"] = np.ones((16, channels, 3, 3), np.int8)
        model = shaped(build(text.replace("1,3,8,8", f"1,{channels},8,8"), **arrays))
        node = next(node for node in model.graph if node.op_type == "Conv")
        return list(packing.scratch(node, Sizes(model.graph)))

    assert work(3) == [4 * 16 * 64, 27 * 64]
    assert work(4) == [8 * 9 * 64]  # pointers to the inputs of each result


def test_a_plain_reader_behind_a_convolution_in_blocks_costs_a_copy() -> None:
    text = """net (float[1,3,8,8] x) => (float[1,8,8,24] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) y = Transpose<perm=[0,2,3,1]>(a)
    }"""
    model = shaped(build(text, w=rand(0, 24, 3, 3, 3)))

    def made(block: int) -> list[int]:
        steps = schedule(model.graph, Sizes(model.graph), block).steps
        return [size for step in steps for _, size in step.made]

    assert made(16) == [32 * 64 * 4, 24 * 64 * 4, 24 * 64 * 4]  # padded, turned over, transposed
    assert made(0) == [24 * 64 * 4, 24 * 64 * 4]


# --- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [onnxruntime, openvino], ids=lambda module: module.NAME)
def test_activations_grow_with_batch_and_resolution_and_weights_do_not(backend: ModuleType, target: Target) -> None:
    model = wide(batch="N")
    one, four, larger = (
        backend.predict(shaped(model, {"x": shape}), target, {}, quantized=False)
        for shape in ((1, 3, 112, 112), (4, 3, 112, 112), (1, 3, 224, 224))
    )
    assert one.activations is not None
    assert four.activations is not None
    assert 3 * one.activations < four.activations < 5 * one.activations
    assert (one.weights, one.packed) == (four.weights, four.packed)
    assert larger.activations is not None
    assert larger.activations > 3 * one.activations


def test_what_no_machine_holds_is_summed_and_not_simulated(target: Target) -> None:
    """A shape in a file, or on the command line, costs nothing here."""
    model = shaped(wide(batch="N"), {"x": (10**9, 3, 112, 112)})
    found = onnxruntime.predict(model, target, {}, quantized=False)
    assert found.activations is not None
    assert found.activations >= 2 * 64 * 112 * 112 * 4 * 10**9
    assert found.overhead == 0


def test_the_peak_names_its_operator(target: Target) -> None:
    model = wide()
    names = [node.name for node in model.graph if node.op_type == "Conv"]
    for backend in (onnxruntime, openvino):
        assert predict(backend, model, target).peak_operators[0] == names[1]


def test_an_unknown_shape_leaves_the_total_open(target: Target) -> None:
    text = "net (float[N,M] x) => (float[K] y) { i = NonZero(x) j = Cast<to=1>(i) y = ReduceSum<keepdims=0>(j, axes) }"
    model = build(text, axes=np.array([0]))
    for backend in (onnxruntime, openvino):
        found = predict(backend, model, target)
        assert found.activations is None
        assert found.total is None


def test_predicting_leaves_the_model_alone(target: Target) -> None:
    model = wide(batch="N")
    before = ir.to_proto(model.ir).SerializeToString()
    onnxruntime.predict(shaped(model, {"x": (2, 3, 64, 64)}), target, {}, quantized=False)
    assert ir.to_proto(model.ir).SerializeToString() == before


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match='no input "z"'):
        shaped(wide(), {"z": (1,)})
    with pytest.raises(ModelError, match="4 dimensions, and 2 are given"):
        shaped(wide(), {"x": (1, 3)})


def test_the_processor_decides_about_blocks(target: Target) -> None:
    narrow = wide(channels=8)
    eight = dataclasses.replace(target, arch="x86_64", isa=("avx2",))
    sixteen = dataclasses.replace(target, arch="x86_64", isa=("avx2", "avx512f"))
    assert predict(onnxruntime, narrow, eight).packed < predict(onnxruntime, narrow, sixteen).packed


# --- real processes -------------------------------------------------------------------------------------------------


def measured(model: Model, backend: ModuleType, target: Target, folder: Path, **options: str) -> int:
    artifact = backend.lower(model, dataclasses.replace(target, runtime={}), folder / "m.onnx", precision="float32")
    files = {}
    for spec in model.inputs:
        shape = [dim if isinstance(dim, int) else 1 for dim in spec.shape]
        files[spec.name] = str(folder / "x.npy")
        np.save(files[spec.name], np.ones(shape, np.float32))
    request = {"runner": backend.NAME, "path": str(artifact.path), "options": {"threads": 1, **options}}

    def run(job: Any) -> Any:
        return {"reason": "not asked for"} if job["job"] == "growth" else process.run(job, 120)

    plan = memory.Plan(3, 0.0)
    return int(memory.figures({**request, "samples": [files]}, 120, run, plan=plan)["model"]["bytes"])


def deep() -> Model:
    return wide(channels=384, size=14)


CASES = [(onnxruntime, wide), (onnxruntime, heavy), (openvino, wide), (openvino, deep)]


@pytest.mark.parametrize(("backend", "make"), CASES, ids=lambda value: getattr(value, "NAME", value.__name__))
def test_the_prediction_is_what_a_fresh_process_needs(
    backend: ModuleType, make: Callable[[], Model], target: Target, tmp_path: Path
) -> None:
    model = make()
    needed = measured(model, backend, target, tmp_path)
    total = predict(backend, model, target).total
    assert total == pytest.approx(needed, rel=0.2)


def test_a_planted_error_is_caught(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = measured(heavy(), onnxruntime, target, tmp_path)
    monkeypatch.setattr(ort_memory, "packed", lambda node: iter(()))  # forgets the packed copies
    total = predict(onnxruntime, heavy(), target).total
    assert total is not None
    assert abs(total - needed) > 0.2 * needed


def test_library_for_quantized_activations_is_counted_once() -> None:
    plain = """net (float[1,8] x) => (float[1,8] y) { r = Relu(x) y = Tanh(r) }"""
    pairs = """net (float[1,8] x) => (float[1,8] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d)
        p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)
    }"""
    quantized = build(pairs, s=np.array(0.1, np.float32), z=np.array(0, np.int8))
    assert ort_memory.features(build(plain), quantized=False) == (1, 0, 2)
    assert ort_memory.features(quantized, quantized=True) == (1, 1, 3)  # Relu, and four that count half
