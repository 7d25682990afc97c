"""What a user names to Model: content decides what a file is, not its name; what is no file may be a factory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeopt.errors import ModelError
from edgeopt.loaders import factory, onnx_file, pt2, sniff, torchscript
from edgeopt.loaders.input_shape import parse_shape
from edgeopt.model import Model, Origin, assign_keys, shown

__all__ = ["default_name", "load", "parse_shape"]


def load(
    path: str | Path,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    trust_pickle: bool = False,
    weights: Path | None = None,
    force_eval: bool = False,
) -> Model:
    """Load a network: ``.onnx``, ``.pt2`` (``torch.export.save``), ``.pt`` (``torch.jit.save``), or a factory.

    Args:
        path: the model file, or ``package.module:function`` where there is no such file: the function is run, in a
            process of its own.
        shapes: new shapes of inputs by name, each a tuple of positive sizes, or an ``InputShape`` with a type and open
            sizes; the shapes inside follow. TorchScript needs them, because it does not tell its own.
        trust_pickle: open a torch file as it is, pickled members included. Pickles run code.
        weights: ``.pth`` or ``.safetensors`` file for a factory.
        force_eval: take a torch network captured in training mode as if it had been exported in eval mode.

    Raises:
        ModelError: the file is missing, is something else, damaged, hostile, captured in training mode, or does not
            fit ``shapes`` or ``weights``.
        ToolchainError: what is not ONNX needs torch, which is not installed.
    """
    asked = dict(shapes or {})
    if factory.is_factory(path):
        name = str(path)
        model, files, notes = factory.load(name, weights, asked, trust_pickle=trust_pickle, force_eval=force_eval)
        kind, path = "factory", Path(name)
    else:
        path = Path(path)
        if weights is not None:
            raise ModelError(
                f"{shown(path)} brings its own weights; --weights belongs to package.module:function.",
                remedy="Leave --weights out, or give the function that makes the network.",
            )
        try:
            kind = sniff.identify(path)
            files, notes = (path,), ()
            if kind == "torchscript":
                model, notes = torchscript.load(path, asked, trust_pickle=trust_pickle, force_eval=force_eval)
            elif kind == "pt2":
                model, notes = pt2.load(path, asked, trust_pickle=trust_pickle, force_eval=force_eval)
            else:
                model, files = onnx_file.load(path, asked)
        except OSError as error:
            raise ModelError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    assign_keys(model)
    loaded = Model(ir=model, origin=Origin(path=path, format=kind, files=files, notes=notes))
    _check_types(loaded, asked)
    return loaded


def default_name(path: str | Path, weights: Path | None = None) -> str:
    """What to call a network that nobody named: the file's stem; of a factory the weights' stem, or the function."""
    if factory.is_factory(path):
        return weights.stem if weights is not None else str(path).rpartition(":")[2]
    return Path(path).stem


def _check_types(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A type that was asked for is the type that the network has."""
    types = {spec.name: spec.dtype for spec in model.inputs}
    for name, sizes in shapes.items():
        wanted = getattr(sizes, "dtype", None)
        if wanted and types.get(name, wanted) != wanted:
            raise ModelError(
                f'input "{name}" of {shown(model.origin.path)} has the type {types[name]}, not {wanted}.',
                remedy="Leave the type out: a file that tells its types keeps them.",
            )
