"""Child process: imports the user's function, fills its network with weights, exports it to ONNX."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgeopt.errors import ModelError, did_you_mean
from edgeopt.loaders import _verify
from edgeopt.loaders import weights as weights_
from edgeopt.loaders._export_pt2 import quiet, to_onnx
from edgeopt.loaders.factory import CONTRACT

KEYS = ("module", "example", "dynamic", "trace")


class Made(NamedTuple):
    """What a factory gave, with the arguments of ``forward`` in order of its signature."""

    module: Any
    arguments: dict[str, Any]
    dynamic: Any
    trace: bool


def main(
    exported: str,
    *,
    factory: str,
    weights: str | None,
    kind: str | None,
    trust_pickle: bool,
    shapes: Mapping[str, Any],
    force_eval: bool,
    label: str,
) -> dict[str, Any]:
    """Make, fill and export the network; returns its source file, the names of open sizes and what was changed."""
    quiet()
    function = find(factory)
    source = inspect.getsourcefile(function) or inspect.getsourcefile(inspect.getmodule(function) or function)
    with blame(label):
        given = function()
    made = take(given, shapes, label)
    if weights is not None and kind is not None:
        state = weights_.read(Path(weights), kind, trust_pickle=trust_pickle)
        weights_.put(made.module, state, Path(weights).name, label)
    made.module.eval()
    export = _trace if made.trace else _capture
    notes = export(made, exported, label, force_eval=force_eval)
    return {"source": source, "symbols": _symbols(made.dynamic), "notes": notes}


@contextlib.contextmanager
def blame(label: str) -> Iterator[None]:
    """What the user's code raises becomes one line with the place in it."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        places = [p for p in traceback.extract_tb(error.__traceback__) if not p.filename.startswith("<frozen")]
        place = f" ({places[-1].filename}, line {places[-1].lineno})" if len(places) > 1 else ""
        if isinstance(error, SyntaxError):
            place = f" ({error.filename}, line {error.lineno})"
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise ModelError(f"{label} failed: {type(error).__name__}: {reason}{place}") from error


def _symbols(dynamic: Any) -> dict[str, dict[str, str]]:
    """Names of open sizes by input and position, where they are named."""
    found: dict[str, dict[str, str]] = {}
    for name, sizes in (dynamic or {}).items():
        numbered = sizes.items() if isinstance(sizes, dict) else enumerate(sizes or ())
        named = {str(p): str(d.__name__) for p, d in numbered if isinstance(getattr(d, "__name__", None), str)}
        if named:
            found[name] = named
    return found


def find(factory: str) -> Any:
    """The function; its module is looked for in the current folder first.

    Raises:
        ModelError: there is no such module or function.
    """
    name, _, attribute = factory.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        with blame(factory):
            module = importlib.import_module(name)
    except ModelError as refusal:
        error = refusal.__cause__
        if not isinstance(error, ModuleNotFoundError):
            raise
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ModelError(
                f"{factory}: there is no module {error.name} in {Path.cwd()} or among the installed ones, "
                "and no file of that name.",
                remedy="Give a model file, or package.module:function from the folder that holds the package.",
            ) from error
        raise
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ModelError(
            f"{factory}: {name} has no function {attribute}.{did_you_mean(attribute, known)}", remedy=CONTRACT
        )
    return function


def take(given: Any, shapes: Mapping[str, Any], label: str) -> Made:
    """Read the function's result by the contract.

    Raises:
        ModelError: it is something else, or the inputs cannot be known.
    """
    import torch

    module, example, dynamic, trace = given, None, None, False
    if isinstance(given, tuple) and len(given) == 2:
        module, example = given
    elif isinstance(given, dict):
        for key in given:
            if key not in KEYS:
                raise ModelError(
                    f'{label} returns the unknown key "{key}".{did_you_mean(str(key), KEYS)}', remedy=CONTRACT
                )
        module, example, dynamic = (given.get(key) for key in KEYS[:3])
        trace = bool(given.get("trace", False))
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{label} returns a {type(module).__name__}, not a torch.nn.Module.", remedy=CONTRACT)
    parameters = list(inspect.signature(module.forward).parameters.values())
    arguments = _arguments(example, parameters, label)
    dynamic = _by_shape(arguments, dynamic, shapes, parameters, label)
    missing = [
        p.name
        for p in parameters
        if p.name not in arguments and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing or not arguments:
        raise ModelError(
            f"{label} does not tell its inputs: {', '.join(missing) or 'forward takes none'}.",
            remedy="Return (module, example inputs), or give "
            + " ".join(f"--shape {name}=1x3x224x224" for name in missing[:4])
            + " (1x64:int64 for numbers of tokens).",
        )
    return Made(module, arguments, dynamic, trace)


def _arguments(example: Any, parameters: list[inspect.Parameter], label: str) -> dict[str, Any]:
    import torch

    if example is None:
        return {}
    if isinstance(example, dict):
        return dict(example)
    values = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    if len(values) > len(parameters):
        raise ModelError(
            f"{label} gives {len(values)} example inputs, forward takes {len(parameters)}.", remedy=CONTRACT
        )
    return {parameter.name: value for parameter, value in zip(parameters, values)}


def _by_shape(
    arguments: dict[str, Any], dynamic: Any, shapes: Mapping[str, Any], parameters: list[inspect.Parameter], label: str
) -> Any:
    """Put the sizes of ``--shape`` into the example; returns what stays dynamic, by argument."""
    import torch

    known = [p.name for p in parameters]
    if isinstance(dynamic, (tuple, list)):
        dynamic = dict(zip(arguments, dynamic))
    kept: dict[str, Any] = dict(dynamic or {})
    symbols: dict[str, Any] = {}
    for name, asked in shapes.items():
        if name not in known:
            raise ModelError(
                f'{label} has no input "{name}".{did_you_mean(name, known)}',
                remedy=f"Its inputs are: {', '.join(known)}.",
            )
        before = arguments.get(name)
        if before is not None and not isinstance(before, torch.Tensor):
            raise ModelError(f"{name} of {label} is a {type(before).__name__}, not a tensor, and has no shape.")
        dtype = getattr(torch, asked["dtype"]) if asked["dtype"] else torch.float32 if before is None else before.dtype
        made = _verify.made_up(asked["sizes"], dtype, "randn")
        if made is None:
            sizes = "x".join(map(str, asked["sizes"]))
            raise ModelError(f"the shape {sizes} of {name} is too large to try {label} with.")
        arguments[name] = made
        kept[name] = {
            int(position): symbols.setdefault(symbol, torch.export.Dim(symbol)) for position, symbol in asked["open"]
        } or None
    if not any(kept.values()):
        return None
    return {name: kept.get(name) for name in arguments}


def _capture(made: Made, exported: str, label: str, *, force_eval: bool) -> list[str]:
    import torch

    try:
        with torch.no_grad():
            program = torch.export.export(made.module, (), made.arguments, dynamic_shapes=made.dynamic)
    except Exception as error:  # the user's code may raise anything
        lines = [line for line in str(error).splitlines() if line.strip()]
        told = "\n".join(f"  {line}" for line in lines[:3]) or f"  {type(error).__name__}"
        raise ModelError(
            f"torch.export cannot capture {label}:\n{told}",
            remedy='Rewrite what it names, or return {"trace": True, ...} to record one run with TorchScript instead; '
            "branches are then taken as the example takes them.",
        ) from error
    return to_onnx(program, exported, label=label, force_eval=force_eval)


def _trace(made: Made, exported: str, label: str, *, force_eval: bool) -> list[str]:
    """One recorded run, because the factory asked for it."""
    import torch

    from edgeopt.loaders import _export_torchscript

    tensors = {n: v for n, v in made.arguments.items() if isinstance(v, torch.Tensor)}
    if len(tensors) != len(made.arguments) or made.dynamic:
        raise ModelError(f"{label} asks for tracing, which takes tensors of fixed sizes alone.", remedy=CONTRACT)
    jit: Any = torch.jit
    with torch.no_grad():
        traced = jit.trace(made.module, example_kwarg_inputs=tensors, strict=False, check_trace=False)
    program = Path(exported).with_suffix(".pt")
    jit.save(traced, program)
    sizes = [(list(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors.values()]
    facts = _export_torchscript.main(
        exported, program=str(program), label=label, shapes={}, traced=sizes, force_eval=force_eval
    )
    notes: list[str] = facts["notes"]
    return ["recorded by tracing one run: branches are taken as the example takes them", *notes]
