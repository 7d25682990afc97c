"""A TorchScript archive built by hand, as torch 2.13 writes it, and networks exported in this process."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.unit.loaders.programs import W

CODE = """class M(Module):
  __parameters__ = ["weight", ]
  __buffers__ = []
  weight : Tensor
  training : bool
  def forward(self: __torch__.M,
    x: Tensor) -> Tensor:
    weight = self.weight
    return torch.relu(torch.matmul(x, weight))
"""

Members = dict[str, bytes]
Edit = Callable[[Members], None]


def text(words: str) -> bytes:
    """BINUNICODE."""
    data = words.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def tensor(key: str, sizes: tuple[int, ...], strides: tuple[int, ...], *, held: int, offset: int = 0) -> bytes:
    """The pickle of a float32 tensor of ``sizes`` in a storage of ``held`` elements."""
    numbers = [b"(" + b"".join(b"J" + n.to_bytes(4, "little") for n in part) + b"t" for part in (sizes, strides)]
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu")
    storage += b"J" + held.to_bytes(4, "little") + b"tQ"
    rest = b"J" + offset.to_bytes(4, "little") + b"".join(numbers) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


def network(weight: bytes) -> bytes:
    """The pickle of an ``M``."""
    return b"\x80\x02c__torch__\nM\n)\x81}(" + text("weight") + weight + text("training") + b"\x89ub."


def members() -> Members:
    """relu(x[N,3] @ w[3,4])."""
    return {
        "data/0": W.tobytes(),
        "data.pkl": network(tensor("0", (3, 4), (4, 1), held=12)),
        "code/__torch__.py": CODE.encode(),
        "constants.pkl": b"\x80\x02).",
        "version": b"3\n",
        "byteorder": b"little",
        ".data/serialization_id": b"0" * 40,
    }


def write_script(
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


def code(body: str) -> Edit:
    """The network's forward with ``body`` before its return."""
    line = f"    {body}\n    return torch.relu"
    return lambda content: content.update({"code/__torch__.py": CODE.replace("    return torch.relu", line).encode()})


def exported(folder: Path, module: Any, *shapes: str, force_eval: bool = False) -> tuple[ir.Model, dict[str, Any]]:
    """What the loader's child process makes of a script module, made here: it takes a second and not five."""
    import torch

    from edgeopt.loaders import _export_torchscript, input_shape, torchscript_archive
    from edgeopt.loaders.pt2 import read_export

    saver: Any = torch.jit
    saver.save(module, folder / "net.pt")
    traced = torchscript_archive.rewrite(folder / "net.pt", folder / "copy.pt")
    facts = _export_torchscript.main(
        str(folder / "net.onnx"),
        program=str(folder / "copy.pt"),
        label="net.pt",
        shapes=input_shape.as_json(dict(map(input_shape.parse_shape, shapes))),
        traced=[list(one) for one in traced],
        force_eval=force_eval,
    )
    return read_export(folder / "net.onnx", "net.pt", {}), facts


def described(model: ir.Model) -> list[str]:
    """Inputs and outputs, as ``name: type[sizes]``."""
    from edgeopt.model import spec_of

    return [str(spec_of(value)) for value in (*model.graph.inputs, *model.graph.outputs)]


def large(model: ir.Model, size: int = 1024) -> dict[str, tuple[int, ...]]:
    """Stored tensors of ``size`` bytes and more, with their shapes."""
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    found = {name: tuple(t.shape.numpy()) for name, t in held.items() if t is not None and t.nbytes >= size}
    for node in model.graph.all_nodes():
        value = node.attributes.get("value")
        if node.op_type == "Constant" and value is not None and value.as_tensor().nbytes >= size:
            found[node.outputs[0].name or ""] = tuple(value.as_tensor().shape.numpy())
    return found


def noise(*sizes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=sizes).astype(np.float32)
