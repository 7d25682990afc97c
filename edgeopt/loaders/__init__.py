"""Path to Model: what a file is decides its content, not its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeopt.errors import ModelError
from edgeopt.loaders import onnx_file, pt2, sniff
from edgeopt.loaders.shapes import parse_shape
from edgeopt.model import Model, Origin, assign_keys, shown

__all__ = ["load", "parse_shape"]


def load(path: str | Path, *, shapes: Mapping[str, tuple[int, ...]] | None = None, trust_pickle: bool = False) -> Model:
    """Load a network from ``.onnx`` or ``.pt2`` (a program saved by ``torch.export.save``).

    Args:
        path: the model file.
        shapes: new shapes of inputs by name, each a tuple of positive sizes; the shapes inside follow.
        trust_pickle: open a ``.pt2`` file as it is, pickled members included. Pickles run code.

    Raises:
        ModelError: the file is missing, is something else, damaged, hostile, or does not fit ``shapes``.
        ToolchainError: a ``.pt2`` file needs torch, which is not installed.
    """
    path = Path(path)
    try:
        kind = sniff.identify(path)
        if kind == "pt2":
            model = pt2.load(path, dict(shapes or {}), trust_pickle=trust_pickle)
            files: tuple[Path, ...] = (path,)
        else:
            model, files = onnx_file.load(path, dict(shapes or {}))
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=path, format=kind, files=files))
