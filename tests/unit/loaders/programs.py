"""A ``.pt2`` archive built by hand, as torch 2.13 writes it, and payloads that leave a mark when they run."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"

W = np.arange(12, dtype=np.float32).reshape(3, 4) - 5

Members = dict[str, bytes]
Edit = Callable[[Members], None]


def _tensor(sizes: list[Any], strides: list[int], *, trained: bool = False) -> dict[str, Any]:
    return {
        "dtype": 7,
        "sizes": [size if isinstance(size, dict) else {"as_int": size} for size in sizes],
        "requires_grad": trained,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def _node(operator: str, name: str, inputs: dict[str, str]) -> dict[str, Any]:
    return {
        "target": operator,
        "inputs": [{"name": k, "arg": {"as_tensor": {"name": v}}, "kind": 1} for k, v in inputs.items()],
        "outputs": [{"as_tensor": {"name": name}}],
        "metadata": {"stack_trace": "/home/somebody/train.py", "nn_module_stack": "L__self__,,__main__.M"},
        "is_hop_single_tensor_return": None,
        "name": name,
    }


def program() -> dict[str, Any]:
    """relu(x[N,3] @ w[3,4])."""
    leaf = {"type": None, "context": None, "children_spec": []}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    both = {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, keywords]}
    batch = {"as_expr": {"expr_str": "Symbol('s77', positive=True, integer=True)", "hint": {"as_int": 2}}}
    return {
        "graph_module": {
            "graph": {
                "inputs": [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "x"}}],
                "outputs": [{"as_tensor": {"name": "relu"}}],
                "nodes": [
                    _node("torch.ops.aten.matmul.default", "matmul", {"self": "x", "other": "p_w"}),
                    _node("torch.ops.aten.relu.default", "relu", {"self": "matmul"}),
                ],
                "tensor_values": {
                    "p_w": _tensor([3, 4], [4, 1], trained=True),
                    "x": _tensor([batch, 3], [3, 1]),
                    "matmul": _tensor([batch, 4], [4, 1]),
                    "relu": _tensor([batch, 4], [4, 1]),
                },
                "sym_int_values": {},
                "sym_bool_values": {},
                "is_single_tensor_return": False,
                "custom_obj_values": {},
                "sym_float_values": {},
            },
            "signature": {
                "input_specs": [
                    {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
                    {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
                ],
                "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "relu"}}}}],
            },
            "module_call_graph": [
                {
                    "fqn": "",
                    "signature": {
                        "inputs": [],
                        "outputs": [],
                        "in_spec": json.dumps([1, both]),
                        "out_spec": json.dumps([1, leaf]),
                        "forward_arg_names": ["x"],
                    },
                }
            ],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10},
        "range_constraints": {"s77": {"min_val": 2, "max_val": None}},
        "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"],
        "torch_version": "2.13.0+cpu",
        "guards_code": [],
    }


def members() -> Members:
    weight = {
        "path_name": "weight_0",
        "is_param": True,
        "use_pickle": False,
        "tensor_meta": _tensor([3, 4], [4, 1], trained=True),
    }
    return {
        "data/weights/weight_0": W.tobytes(),
        WEIGHTS: json.dumps({"config": {"w": weight}}).encode(),
        CONSTANTS: b'{"config": {}}',
        PROGRAM: json.dumps(program()).encode(),
        SAMPLES: b"",
        "archive_format": b"pt2",
        "archive_version": b"0",
        ".data/version": b"6\n",
        "byteorder": b"little",
    }


def write_program(
    path: Path, edit: Edit | None = None, *, top: str = "net/", compression: int = zipfile.ZIP_STORED
) -> Path:
    """Write the archive after ``edit`` changed its members in place."""
    content = members()
    if edit is not None:
        edit(content)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(top + name, data)
    return path


def edit_json(content: Members, name: str, edit: Callable[[Any], object]) -> None:
    data = json.loads(content[name])
    edit(data)
    content[name] = json.dumps(data).encode()


class Mark:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


def saved(thing: object) -> bytes:
    """What torch.save writes, without torch."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(thing, 2))
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/version", b"3\n")
    return out.getvalue()


def code(mark: Path) -> str:
    """A Python expression that creates the file."""
    return f"__import__('os').system('touch {mark}')"


def payloads(mark: Path) -> dict[str, Edit]:
    """Every place of the format from which torch 2.13 runs code, each with code that creates ``mark``."""
    boom, text = Mark(mark), code(mark)

    def weight(content: Members) -> None:
        edit_json(content, WEIGHTS, lambda d: d["config"]["w"].update(use_pickle=True, path_name="weight_1"))
        content["data/weights/weight_1"] = saved((boom,))

    def pickled(kind: str, data: bytes) -> Edit:
        entry = {"path_name": f"{kind}_0", "is_param": False, "use_pickle": True, "tensor_meta": None}

        def edit(content: Members) -> None:
            edit_json(content, CONSTANTS, lambda d: d["config"].update(c=entry))
            content[f"data/constants/{kind}_0"] = data

        return edit

    def node(key: str, new: object) -> Edit:
        return lambda content: edit_json(
            content, PROGRAM, lambda d: d["graph_module"]["graph"]["nodes"][0].update({key: new})
        )

    def rename(content: Members) -> None:
        injected = f"x={text}"
        content[PROGRAM] = content[PROGRAM].replace(b'{"name": "x"}', json.dumps({"name": injected}).encode())
        content[PROGRAM] = content[PROGRAM].replace(b'"x": {"dtype"', (json.dumps(injected) + ': {"dtype"').encode())

    def size(content: Members) -> None:
        wrong = {"as_expr": {"expr_str": text, "hint": None}}
        edit_json(
            content, PROGRAM, lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(0, wrong)
        )

    def tree(content: Members) -> None:
        factory = {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []}
        spec = [1, {"type": "collections.defaultdict", "context": factory, "children_spec": []}]
        edit_json(
            content,
            PROGRAM,
            lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(out_spec=json.dumps(spec)),
        )

    return {
        "sample inputs": lambda c: c.update({SAMPLES: saved((boom,))}),
        "bare pickle as sample inputs": lambda c: c.update({SAMPLES: pickle.dumps(boom)}),
        "pickled weight": weight,
        "pickled tensor constant": pickled("tensor", saved((boom,))),
        "custom object": pickled("custom_obj", pickle.dumps(boom)),
        "opaque object": pickled("opaque_obj", pickle.dumps(boom)),
        "weights of torch 2.8": lambda c: c.update({"data/weights/model.pt": saved({"w": boom})}),
        "constants of torch 2.8": lambda c: c.update({"data/constants/model.pt": saved({"w": boom})}),
        "loose pickle": lambda c: c.update({"data/weights/data.pkl": pickle.dumps(boom)}),
        "symbolic size": size,
        "operator": node("target", "torch.os.system"),
        "library loader": node("target", "torch.ops.load_library"),
        "node name": node("name", f"a); {text} #"),
        "argument name": rename,
        "pytree": tree,
        "custom class": node("inputs", [{"name": "self", "arg": {"as_custom_obj": {"name": "x", "class_fqn": "a.B"}}}]),
    }


def guarded(mark: Path) -> Edit:
    """Guards are code as well; they are dropped, not refused."""
    return lambda content: edit_json(content, PROGRAM, lambda d: d.update(guards_code=[f"{code(mark)} == 0"]))


def torch_2_7(mark: Path) -> Members:
    """The older format, flat in the archive, its weights pickled."""
    return {
        "version": b"8.5",
        "serialized_exported_program.json": json.dumps(program()).encode(),
        "serialized_state_dict.pt": saved({"w": Mark(mark)}),
        "serialized_constants.pt": saved({}),
        "serialized_example_inputs.pt": saved(((), {})),
    }
