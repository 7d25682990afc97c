"""TorchScript ``.pt`` files: members looked at first, then exported to ONNX by torch in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.loaders import exporting, input_shape, torchscript_archive
from edgeopt.loaders.pt2 import read_export
from edgeopt.model import shown


def load(
    path: Path, shapes: Mapping[str, tuple[int, ...]], *, trust_pickle: bool, force_eval: bool
) -> tuple[ir.Model, tuple[str, ...]]:
    """Export the network in ``path`` to ONNX and load that; returns also what was changed or fixed, one line each.

    Args:
        path: what ``torch.jit.save`` wrote.
        shapes: sizes of the inputs by the names of ``forward``'s arguments; an ``int`` argument takes its value as
            the one size. A traced network tells its own sizes; these win.
        trust_pickle: give torch the file as it is.
        force_eval: switch a network in training mode to eval mode.

    Raises:
        ModelError: the archive is damaged, hostile or needs trust, a shape is missing, torch cannot export it, or it
            was captured in training mode.
        ToolchainError: torch or its ONNX exporter is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="edgeopt-pt-") as folder:
        program, exported = Path(folder, "program.pt"), Path(folder, "model.onnx")
        traced: list[torchscript_archive.TracedInput] = []
        if trust_pickle:
            torchscript_archive.refuse_hostile(path)
            shutil.copyfile(path, program)
        else:
            traced = torchscript_archive.rewrite(path, program)
        exporting.need_torch(shown(path))
        options = {
            "program": str(program),
            "shapes": input_shape.as_json(shapes),
            "traced": [list(one) for one in traced],
            "force_eval": force_eval,
        }
        facts = exporting.export("torchscript", shown(path), exported, options, trust_pickle=trust_pickle)
        return read_export(exported, shown(path), {}), tuple(facts.get("notes", ()))
