"""``package.module:function``: the user's own code makes the network, in a process of its own.

That code is run: it is the user's, and nothing here protects from it. What it is given to read is looked at first.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.loaders import exporting, input_shape, weights
from edgeopt.loaders.pt2 import read_export
from edgeopt.model import shown

_SPELLING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

CONTRACT = (
    "The function takes no arguments and returns a torch.nn.Module, (module, example inputs), or "
    '{"module": ..., "example": ..., "dynamic": ...}; see docs/models.md.'
)


def is_factory(model: str | Path) -> bool:
    """Whether ``model`` is spelled like a factory and is no file."""
    return bool(_SPELLING.fullmatch(str(model))) and not Path(model).exists()


def load(
    factory: str,
    weights_file: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    trust_pickle: bool,
    force_eval: bool,
) -> tuple[ir.Model, tuple[Path, ...], tuple[str, ...]]:
    """The network that the function makes, the files it came from (its source, then the weights), what was changed.

    The module is imported with the current folder on ``sys.path``, and put into eval mode.

    Raises:
        ModelError: the weights are no weights, damaged, hostile or do not fit; the function cannot be imported, fails
            or returns something else; torch cannot export the network.
        ToolchainError: torch or its ONNX exporter is not installed.
    """
    kind = weights.check(weights_file, trust_pickle=trust_pickle) if weights_file is not None else None
    exporting.need_torch(shown(factory))
    with tempfile.TemporaryDirectory(prefix="edgeopt-factory-") as folder:
        exported = Path(folder, "model.onnx")
        options = {
            "factory": factory,
            "weights": None if weights_file is None else str(weights_file.absolute()),
            "kind": kind,
            "trust_pickle": trust_pickle,
            "shapes": input_shape.as_json(shapes),
            "force_eval": force_eval,
        }
        remedy = "Export it with torch.onnx.export where the network is written, and give the .onnx file."
        facts = exporting.export(
            "factory",
            shown(factory),
            exported,
            options,
            trust_pickle=trust_pickle,
            folder=Path.cwd(),
            remedy=remedy,
        )
        model = read_export(exported, shown(factory), {})
    name_dims(model, facts["symbols"])
    source = facts["source"]
    if source is None:
        raise ModelError(f"{shown(factory)} has no source file, so what was built could not be told later.")
    files = [Path(source), *([weights_file] if weights_file is not None else [])]
    return model, tuple(files), tuple(facts["notes"])


def name_dims(model: ir.Model, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Give open sizes the names that the user gave them, everywhere; torch numbers them (``s23``).

    Args:
        model: edited in place.
        wanted: names by input and, as text, position.
    """
    names: dict[str, str] = {}
    for value in model.graph.inputs:
        for position, symbol in wanted.get(value.name or "", {}).items():
            size = None if value.shape is None else value.shape[int(position)]
            if isinstance(size, ir.SymbolicDim) and size.value:
                names.setdefault(str(size.value), symbol)
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    for graph in model.graphs():
        for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
            if value.shape is not None:
                value.shape = ir.Shape(
                    pattern.sub(lambda found: names[found[1]], size.value)
                    if isinstance(size, ir.SymbolicDim) and size.value
                    else size
                    for size in value.shape
                )
