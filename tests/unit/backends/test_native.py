"""The runtime's own graph as an artifact: the same numbers and the same bytes, bound where it has to be."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import host
from edgeopt.backends import Artifact
from edgeopt.backends import onnxruntime as backend
from edgeopt.backends.onnxruntime import own_graph, releases
from edgeopt.backends.onnxruntime.canonical import canonical
from edgeopt.interpreter import Interpreter
from edgeopt.model import LAYOUTS, Model, Origin
from edgeopt.target import Target, load_target
from runtime_bench.native import block_of
from tests.unit.backends.nets import residual_net

X = np.random.default_rng(5).normal(size=(2, 1, 28, 28)).astype(np.float32)
BLOCKED = block_of(host.probe().arch, host.probe().isa) is not None
"""Whether the runtime has blocked convolutions on this kind of processor."""


@pytest.fixture
def target() -> Target:
    return load_target("host")


def lowered(model: Model, target: Target, folder: Path) -> Artifact:
    return backend.lower(model, target, folder / "net.float32.onnx", precision="float32")


def written(model: Model, target: Target, folder: Path) -> tuple[Artifact, Artifact]:
    """Portable and native."""
    portable = lowered(model, target, folder)
    (folder / "native").mkdir()
    made = backend.native(portable, model, target, folder / "native" / portable.path.name)
    assert isinstance(made, Artifact), made
    return portable, made


def heads() -> onnx.ModelProto:
    """One trunk and five outputs: the runtime numbers the nodes behind the trunk by chance."""
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], name="trunk", pads=[1, 1, 1, 1])]
    arrays = {"w": rng.normal(size=(16, 16, 3, 3))}
    outputs = []
    for i in range(5):
        arrays[f"w{i}"] = rng.normal(size=(16, 16, 1, 1))
        nodes.append(helper.make_node("Conv", ["t", f"w{i}"], [f"y{i}"], name=f"head{i}"))
        outputs.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1, 16, 8, 8]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])]
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()]
    graph = helper.make_graph(nodes, "heads", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def model_of(path: Path) -> Model:
    return Model(ir=ir.load(path), origin=Origin(path=path, format="onnx", files=(path,)))


def test_it_gives_the_same_outputs_with_the_optimizer_off(target: Target, tmp_path: Path) -> None:
    portable, made = written(residual_net(16), target, tmp_path)
    [before] = Interpreter(portable.path).run({"x": X}).values()
    [after] = Interpreter(made.path, optimize=made.optimize).run({"x": X}).values()
    assert not made.optimize
    assert portable.optimize
    assert np.array_equal(before, after)
    assert made.portable == portable.path
    assert made.bytes == made.path.stat().st_size
    assert made.sha256 != portable.sha256
    proto = onnx.load(made.path)
    assert not proto.graph.value_info
    assert not any(node.doc_string or node.metadata_props for node in proto.graph.node)
    assert {o.domain for o in proto.opset_import} == {"", *(n.domain for n in proto.graph.node)}
    assert (proto.producer_name, proto.ir_version) == ("edgeopt", onnx.load(portable.path).ir_version)
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    assert "_token_" not in str(proto.graph)


@pytest.mark.skipif(not BLOCKED, reason="no blocked convolutions on this kind of processor")
def test_blocked_weights_bind_the_file_and_it_says_so_itself(target: Target, tmp_path: Path) -> None:
    portable, made = written(residual_net(16), target, tmp_path)
    bound = {"arch": target.arch, "block": block_of(target.arch, target.isa), "onnxruntime": ort.__version__}
    assert made.bound == bound
    proto = onnx.load(made.path)
    assert any(node.domain in LAYOUTS for node in proto.graph.node)
    assert [json.loads(p.value) for p in proto.metadata_props if p.key == own_graph.BOUND] == [bound]
    assert backend.minimum(made.path)["onnxruntime"] == ort.__version__
    assert backend.minimum(portable.path)["onnxruntime"] != ort.__version__
    assert backend.fused(portable.path, residual_net(16), target, None).nodes


@pytest.mark.skipif(not BLOCKED, reason="no blocked convolutions on this kind of processor")
def test_the_features_tell_the_block_that_the_runtime_uses(target: Target) -> None:
    """``ReorderInput`` pads the channels to whole blocks: 4 of them become one block."""
    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=LAYOUTS[0])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid(LAYOUTS[0], 1)]
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString())
    [y] = session.run(None, {"x": np.ones((1, 4, 2, 2), np.float32)})
    assert y.size // 4 == block_of(target.arch, target.isa)
    assert block_of("x86_64", ["avx2"]) == 8
    assert block_of("x86_64", ["avx2", "avx512f"]) == 16
    assert block_of("x86_64", None) is block_of("aarch64", ["asimd"]) is None


def test_the_same_bytes_from_other_processes_with_other_seeds(tmp_path: Path) -> None:
    source = tmp_path / "heads.onnx"
    onnx.save(heads(), source)
    code = (
        "import sys; from pathlib import Path; from tests.unit.backends import test_native as t\n"
        "folder = Path(sys.argv[2]); folder.mkdir()\n"
        "print(t.written(t.model_of(Path(sys.argv[1])), t.load_target('host'), folder)[1].sha256)\n"
    )
    found = set()
    for seed in range(3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", code, str(source), str(tmp_path / str(seed))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1


def inner_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [one for attribute in node.attribute for one in attribute.g.node]


def read_by(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, without those made inside it."""
    inside = {t.name for attribute in node.attribute for t in attribute.g.initializer}
    return {*node.input, *(n for one in inner_nodes(node) for n in one.input)} - inside


def shuffled(proto: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same graph with free nodes in another order, and other numbers behind the names that the runtime made."""
    rng = random.Random(seed)
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    numbers: dict[str, str] = {}

    def other(name: str) -> str:
        head, found, _ = name.rpartition("_token_")
        return numbers.setdefault(name, f"{head}_token_{rng.randrange(10**9)}") if found else name

    nodes = list(changed.graph.node)
    made = {t.name for t in changed.graph.initializer} | {v.name for v in changed.graph.input}
    order: list[onnx.NodeProto] = []
    while nodes:
        node = rng.choice([n for n in nodes if made.issuperset(read_by(n))])
        nodes.remove(node)
        made |= set(node.output)
        order.append(node)
    tensors = sorted(changed.graph.initializer, key=lambda _: rng.random())
    for node in order:
        node.name = other(node.name)
        node.input[:], node.output[:] = [other(n) for n in node.input], [other(n) for n in node.output]
        for one in inner_nodes(node):  # what it captures is called by its new name
            one.input[:] = [other(n) if n in numbers else n for n in one.input]
    for tensor in tensors:
        tensor.name = other(tensor.name)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in order]
    weights = [onnx.TensorProto.FromString(t.SerializeToString()) for t in tensors]
    del changed.graph.node[:], changed.graph.initializer[:]
    changed.graph.node.extend(copies)
    changed.graph.initializer.extend(weights)
    return changed


def tokens() -> onnx.ModelProto:
    """What a runtime might write: two equal nodes with different readers, numbered names, a branch inside."""
    inner = helper.make_graph(
        [helper.make_node("Mul", ["r_token_7", "k_token_9"], ["m_token_2"], name="Mul_token_4")],
        "then",
        [],
        [helper.make_tensor_value_info("m_token_2", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.full(4, 3, np.float32), "k_token_9")],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["r_token_7"], ["n_token_2"], name="Neg_token_4")],
        "else",
        [],
        [helper.make_tensor_value_info("n_token_2", TensorProto.FLOAT, [4])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r_token_7"], name="Relu_token_1"),
        helper.make_node("Relu", ["x"], ["r_token_8"], name="Relu_token_2"),
        helper.make_node("Add", ["r_token_8", "w_token_1"], ["y0"], name="kept"),
        helper.make_node("Add", ["r_token_7", "w_token_2"], ["y1"], name="Add_token_5"),
        helper.make_node("If", ["c"], ["y2"], name="If_token_3", then_branch=inner, else_branch=other),
    ]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [4]) for i in range(3)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    weights = [numpy_helper.from_array(np.arange(4, dtype=np.float32) + i, f"w_token_{i}") for i in (1, 2)]
    graph = helper.make_graph(nodes, "tokens", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def arranged(proto: onnx.ModelProto) -> bytes:
    model = ir.from_proto(proto)
    kept = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y0"], name="kept")],
        "kept",
        list(proto.graph.input),
        list(proto.graph.output),
    )
    canonical(model, ir.from_proto(helper.make_model(kept, opset_imports=list(proto.opset_import))))
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def answers(data: bytes) -> list[np.ndarray]:
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(data, settings)
    feeds = [{"x": np.float32([-1, 2, -3, 4]), "c": np.array(c)} for c in (True, False)]
    return [value for fed in feeds for value in session.run(None, fed)]


def test_order_and_names_follow_from_what_a_graph_computes() -> None:
    original = tokens()
    mixed = [shuffled(original, seed) for seed in range(20)]
    assert len({proto.SerializeToString(deterministic=True) for proto in mixed}) == 20
    found = {arranged(proto) for proto in mixed}
    assert len(found) == 1
    [data] = found
    for a, b in zip(answers(original.SerializeToString()), answers(data), strict=True):
        assert np.array_equal(a, b)
    graph = onnx.load_from_string(data).graph
    assert "_token_" not in str(graph)
    assert {node.name for node in graph.node} == {"kept", "Relu", "Relu#2", "Add", "If"}
    other = tokens()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([9, 9, 9, 9]), "w_token_1"))
    assert arranged(other) != data


def test_a_file_that_grows_too_much_is_not_taken(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = residual_net(16)
    portable = lowered(net, target, tmp_path)
    monkeypatch.setattr(own_graph, "GROWTH_BYTES", -portable.bytes // 2)
    monkeypatch.setattr(own_graph, "GROWTH", -0.5)
    out = tmp_path / "out.onnx"
    assert "allowed" in str(backend.native(portable, net, target, out))
    assert list(tmp_path.iterdir()) == [portable.path]
    monkeypatch.setattr(own_graph, "LARGEST", portable.bytes - 1)
    assert "may not fit into one file" in str(backend.native(portable, net, target, out))


def test_what_the_runtime_refuses_is_a_reason(target: Target, tmp_path: Path) -> None:
    net = residual_net(16)
    portable = lowered(net, target, tmp_path)
    portable.path.write_bytes(b"\x08\x09 no model")
    assert "cannot write its own graph of the model" in str(backend.native(portable, net, target, tmp_path / "o.onnx"))


def test_only_the_machine_of_the_profile_will_do(target: Target) -> None:
    here = host.probe()
    assert own_graph.unfit(target, here) is None
    pi = dataclasses.replace(load_target("raspberry-pi-5"), optimized="native")
    desk = dataclasses.replace(here, arch="x86_64", isa=("avx2", "avx512f"))
    assert "this machine (x86_64), and raspberry-pi-5 is aarch64" in str(own_graph.unfit(pi, desk))
    narrow = dataclasses.replace(target, arch="x86_64", isa=("avx2",))
    assert "puts 16 channels into a block on this machine, and 8 on host" in str(own_graph.unfit(narrow, desk))
    assert own_graph.unfit(narrow, dataclasses.replace(desk, isa=("avx2",))) is None
    assert "cannot be read" in str(own_graph.unfit(narrow, dataclasses.replace(desk, isa=())))
    old = dataclasses.replace(target, runtime={"onnxruntime": "1.17.0"})
    assert "is installed here, and host has 1.17.0" in str(own_graph.unfit(old, here))


def test_operators_of_unknown_age_bind_to_the_release(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [ir.Node(releases.OWN, "FusedGemm", [], num_outputs=1), ir.Node("", "Relu", [], num_outputs=1)]
    made = ir.Model(ir.Graph([], [], nodes=nodes), ir_version=9)
    assert own_graph.bound_to(made, set(), target) == {}
    monkeypatch.setattr(releases, "_SINCE", {})
    assert own_graph.bound_to(made, set(), target) == {"onnxruntime": ort.__version__}
    inside = ir.Model(ir.Graph([], [], nodes=[ir.Node("acme", "Plugin", [], num_outputs=1)]), ir_version=9)
    assert own_graph.bound_to(inside, set(), target) == {"onnxruntime": ort.__version__}
    assert own_graph.bound_to(inside, {"acme"}, target) == {}
