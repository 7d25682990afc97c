"""``.pt2`` files: members looked at first, then exported to ONNX by torch in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.loaders import exporting, onnx_file, pt2_archive
from edgeopt.model import shown


def load(
    path: Path, shapes: Mapping[str, tuple[int, ...]], *, trust_pickle: bool, force_eval: bool = False
) -> tuple[ir.Model, tuple[str, ...]]:
    """Export the program in ``path`` to ONNX and load that; returns also what was changed, one line each.

    Without ``trust_pickle`` torch sees a rewritten copy that holds the program and its weights and nothing
    that could be unpickled or evaluated; the file itself is never given to it.

    Raises:
        ModelError: the archive is damaged, hostile or needs trust, torch cannot export it, or it was captured in
            training mode and ``force_eval`` is off or cannot help.
        ToolchainError: torch or its ONNX exporter is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="edgeopt-pt2-") as folder:
        program, exported = Path(folder, "program.pt2"), Path(folder, "model.onnx")
        if trust_pickle:
            pt2_archive.refuse_hostile(path)
            shutil.copyfile(path, program)
        else:
            pt2_archive.rewrite(path, program)
        exporting.need_torch(shown(path))
        options = {"program": str(program), "force_eval": force_eval}
        facts = exporting.export("pt2", shown(path), exported, options, trust_pickle=trust_pickle)
        return read_export(exported, shown(path), shapes), tuple(facts.get("notes", ()))


def read_export(exported: Path, label: str, shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    """The exported network, named ``label`` in messages. Small ones are read, large ones mapped: both outlive the file.

    Raises:
        ModelError: the export is not a valid network, or does not fit ``shapes``.
    """
    try:
        model, _ = onnx_file.from_proto(onnx_file.parse(exported), exported, shapes)
    except ModelError as error:
        # The user knows the name of the program only.
        raise ModelError(error.message.replace(shown(exported), label), remedy=error.remedy) from error
    return model
