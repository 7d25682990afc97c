"""Looks at a TorchScript module: its arguments, the tensors in its result, what still trains; runs in the child."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edgeopt.errors import ModelError, did_you_mean

_KEY = re.compile(r"[\w.\- ]+", re.ASCII)


class Argument(NamedTuple):
    """An argument of ``forward``.

    Attributes:
        kind: ``Tensor`` or ``int``, optional ones included; otherwise ``other``.
        type: as TorchScript writes it.
        optional: may be left out.
    """

    name: str
    kind: str
    type: str
    optional: bool


class Leaf(NamedTuple):
    """A tensor in the result: the expression after the result's name, a name of its own or none, its rank."""

    access: str
    name: str | None
    rank: int


class Fed(NamedTuple):
    """An input of the export: its argument, sizes, type and the names of open sizes by position."""

    name: str
    sizes: tuple[int, ...]
    dtype: str
    open: dict[int, str]


def arguments(module: Any) -> list[Argument]:
    """The arguments of ``forward``, in order."""
    found = []
    for one in module.forward.schema.arguments[1:]:
        text = str(one.type)
        bare = re.sub(r"^Optional\[(.*)\]$", r"\1", text)
        kind = bare if bare in ("Tensor", "int") else "other"
        found.append(Argument(one.name, kind, text, one.has_default_value()))
    return found


def plan(
    known: Sequence[Argument], shapes: Mapping[str, Any], traced: Sequence[Sequence[Any]], label: str
) -> tuple[list[Fed], dict[str, int]]:
    """Which arguments become inputs of what sizes, and which integers are fixed to which value.

    Raises:
        ModelError: an argument is not known, cannot be given, or is missing; the message lists them all.
    """
    names = [one.name for one in known]
    for name in shapes:
        if name not in names:
            raise ModelError(f'{label} has no input "{name}".{did_you_mean(name, names)}', remedy=_listing(known))
    tensors = [one for one in known if one.kind == "Tensor" and not one.optional]
    told = dict(zip((one.name for one in tensors), traced)) if len(traced) == len(tensors) else {}
    fed: list[Fed] = []
    values: dict[str, int] = {}
    missing: list[Argument] = []
    for one in known:
        asked = shapes.get(one.name)
        if asked is None:
            if one.name in told:
                sizes, dtype = told[one.name]
                fed.append(Fed(one.name, tuple(sizes), dtype, {}))
            elif not one.optional:
                missing.append(one)
        elif one.kind == "Tensor":
            default = told[one.name][1] if one.name in told else "float32"
            opened = {int(position): symbol for position, symbol in asked["open"]}
            fed.append(Fed(one.name, tuple(asked["sizes"]), asked["dtype"] or default, opened))
        elif one.kind == "int" and len(asked["sizes"]) == 1 and not asked["open"]:
            values[one.name] = asked["sizes"][0]
        else:
            missing.append(one)
    unfit = [one for one in missing if one.kind not in ("Tensor", "int")]
    if unfit:
        listed = ", ".join(f"{one.name}: {one.type}" for one in unfit)
        raise ModelError(
            f"{label} takes arguments that are no tensors: {listed}.",
            remedy="Wrap it in a module whose forward takes tensors, script and save that.",
        )
    if missing:
        raise ModelError(
            f"{label} does not tell the shapes of its inputs: {', '.join(f'{m.name}: {m.type}' for m in missing)}.",
            remedy=_listing(known),
        )
    return fed, values


def _listing(known: Sequence[Argument]) -> str:
    """Every argument with the option that gives it."""
    given = {"Tensor": "1x3x224x224 (or 1x64:int64 for numbers of tokens)", "int": "VALUE"}
    parts = [
        f"--shape {one.name}={given[one.kind]}" + (" (may be left out)" if one.optional else "")
        for one in known
        if one.kind in given
    ]
    return f"Give the sizes, for example: {', '.join(parts) or 'it takes none'}."


def leaves(outputs: Any, label: str) -> list[Leaf]:
    """Every tensor in what ``forward`` returned, through tuples, lists and dicts.

    Raises:
        ModelError: something in it is neither.
    """
    import torch

    found: list[Leaf] = []
    pending: list[tuple[Any, str, str | None]] = [(outputs, "", None)]
    while pending:
        value, access, name = pending.pop()
        if isinstance(value, torch.Tensor):
            found.append(Leaf(access, name, value.dim()))
        elif isinstance(value, dict) and all(isinstance(key, str) and _KEY.fullmatch(key) for key in value):
            pending.extend((item, f"{access}[{json.dumps(key)}]", key) for key, item in reversed(value.items()))
        elif isinstance(value, (tuple, list)):
            fields = getattr(value, "_fields", (None,) * len(value))
            numbered = list(zip(value, range(len(value)), fields))
            pending.extend((item, f"{access}[{position}]", field) for item, position, field in reversed(numbered))
        elif value is not None:
            raise ModelError(
                f"{label} returns a {type(value).__name__}, not only tensors.",
                remedy="Wrap it in a module that returns tensors, script and save that.",
            )
    if not found:
        raise ModelError(f"{label} returns no tensor, so there is nothing to compute.")
    return found


def wrap(module: Any, names: Sequence[str], values: Mapping[str, int], found: Sequence[Leaf]) -> Any:
    """A script module that takes tensors alone, fixes the integers and returns a flat tuple of tensors."""
    import torch

    class Flat(torch.jit.ScriptModule):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

    made = Flat(module)
    taken = ", ".join(f"{name}: Tensor" for name in names)
    given = ", ".join([*(f"{name}={name}" for name in names), *(f"{name}={value}" for name, value in values.items())])
    result = "edgeopt_result"
    returned = ", ".join(result + leaf.access for leaf in found)
    made.define(f"def forward(self, {taken}):\n  {result} = self.inner({given})\n  return {returned}\n")
    return made.eval()


def observe(module: Any, names: Sequence[str], example: Sequence[Any], values: Mapping[str, int]) -> list[str]:
    """Operators that only training calls, in a run in the module's present mode: one entry an operator.

    The operators that torch really calls are watched: flags of a traced network are constants in its code, those of a
    scripted one attributes, and either may stand behind a branch. The run may change the module.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, int] = {}

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _trains(func, args, kwargs or {})
        if found:
            seen[found] = seen.get(found, 0) + 1
        return func(*args, **(kwargs or {}))

    watch: Any = type("Watch", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})
    with watch():
        module(**dict(zip(names, example)), **values)
    return [f"{count} live {what}" for what, count in seen.items()]


def differ(here: Any, there: Any) -> str | None:
    """How two results of one network are not the same; None when they are."""
    import torch

    ours, theirs = flat(here), flat(there)
    if len(ours) != len(theirs):
        return f"it returns {len(ours)} tensors, in eval mode {len(theirs)}"
    for one, other in zip(ours, theirs):
        if getattr(one, "shape", None) != getattr(other, "shape", None):
            return f"it returns {tuple(one.shape)}, in eval mode {tuple(other.shape)}"
        if isinstance(one, torch.Tensor) and not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            return "it returns other values than in eval mode"
    return None


def flat(value: Any) -> list[Any]:
    """Every value in a result, through tuples, lists and dicts."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [] if value is None else [value]


def _trains(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    name = func._schema.name.removeprefix("aten::")
    given = {
        described.name: args[position] if position < len(args) else kwargs.get(described.name, described.default_value)
        for position, described in enumerate(func._schema.arguments)
    }
    if name in ("bernoulli", "bernoulli_"):
        return "Dropout"
    if name == "native_dropout" and given.get("train") is not False:
        return "Dropout"
    if "batch_norm" in name and given.get("training") and given.get("running_mean") is not None:
        return "BatchNormalization"
    if name.startswith("rrelu_with_noise") and given.get("training"):
        return "RReLU"
    return None
