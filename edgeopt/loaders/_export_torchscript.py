"""Child process: a TorchScript archive becomes an ONNX file and is run beside it.

Two ways. A network without a state goes through the TorchScript exporter, which keeps its branches and loops. One that
keeps a state in its attributes is run once under a recorder instead (``_stateful``): its state becomes inputs and
outputs, its branches are taken as they went.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeopt.errors import ModelError
from edgeopt.loaders import _stateful, _training, _verify
from edgeopt.loaders._export_pt2 import quiet
from edgeopt.loaders._script import Fed, Leaf, arguments, differ, leaves, observe, plan, wrap
from edgeopt.loaders.input_shape import OPEN_SIZE


def main(
    exported: str,
    *,
    program: str,
    label: str,
    shapes: Mapping[str, Any],
    traced: Sequence[Sequence[Any]],
    force_eval: bool,
) -> dict[str, Any]:
    """Load the archive at ``program``, see that it is in eval mode, and export it."""
    quiet()
    import torch

    jit: Any = torch.jit

    def load() -> Any:
        return jit.load(program, map_location="cpu")

    def fresh() -> Any:
        return load().eval()

    try:
        module = load()
    except RuntimeError as error:
        sys.exit(f"torch cannot load it: {str(error).strip().splitlines()[0]}")
    fed, values = plan(arguments(module), shapes, traced, label)
    with torch.no_grad(), jit.optimized_execution(False):
        example = [tensor(one, "randn", label) for one in fed]
        names = [one.name for one in fed]
        first_run(module, names, example, values, label)
        notes = _see_eval(load, names, example, values, label, force_eval=force_eval)
        notes += [f"the argument {name} is fixed at {value}" for name, value in values.items()]
        module = fresh()  # runs may have changed the other one
        state = _stateful.find(fresh(), names, example, values)
        if state:
            if any(one.open for one in fed):
                raise ModelError(f"{label} keeps a state, so its sizes cannot stay open.", remedy="Give all sizes.")
            fields = _stateful.export(fresh, state, names, example, values, exported, label)
            carried = ", ".join(f"next_{field} goes to {field}" for field in fields)
            notes.append(f"its state became inputs and outputs: {carried} of the next call, zeros to the first")
            return {"notes": notes}
        kept = _stateful.numbers(module)
        if kept:
            raise ModelError(
                f"{label} keeps a number between calls ({', '.join(kept)}), which an ONNX network cannot.",
                remedy="Save a module that takes it as an argument.",
            )
        found = leaves(first_run(module, names, example, values, label), label)
        wrapper = wrap(module, names, values, found)
        _to_onnx(wrapper, fed, found, exported, label)
        return {"notes": notes}


def tensor(one: Fed, draw: str, label: str, sizes: Mapping[str, int] | None = None) -> Any:
    """A made-up input; ``sizes`` tells open sizes that are not those of the example.

    Raises:
        ModelError: the tensor would be too large.
    """
    import torch

    shape = [(sizes or {}).get(one.open.get(position, ""), n) for position, n in enumerate(one.sizes)]
    made = _verify.made_up(shape, getattr(torch, one.dtype), draw)
    if made is None:
        raise ModelError(f"the shape {'x'.join(map(str, shape))} of {one.name} is too large to try {label} with.")
    return made


def first_run(module: Any, names: Sequence[str], example: Sequence[Any], values: Mapping[str, int], label: str) -> Any:
    """The outputs of the network for ``example``.

    Raises:
        ModelError: it cannot be run with these sizes and types; says why in torch's words.
    """
    try:
        return module(**dict(zip(names, example)), **values)
    except Exception as error:  # code of the file may raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        given = ", ".join(f"{n} {tuple(e.shape)} {e.dtype}".replace("torch.", "") for n, e in zip(names, example))
        given += "".join(f", {name} {value}" for name, value in values.items())
        raise ModelError(
            f"{label} cannot be run with {given}: {lines[-1] if lines else type(error).__name__}",
            remedy="Give other sizes with --shape, and the type where it is not float32: --shape ids=1x64:int64.",
        ) from error


def _see_eval(
    load: Callable[[], Any],
    names: Sequence[str],
    example: Sequence[Any],
    values: Mapping[str, int],
    label: str,
    *,
    force_eval: bool,
) -> list[str]:
    """See that the network is in eval mode, or that this may be forced; returns what has to be switched."""
    module = load()
    trains = any(getattr(part, "training", False) for part in module.modules())  # torch.jit.freeze drops it
    live = observe(module, names, example, values)
    if trains and not live:
        as_saved, in_eval = (first_run(one, names, example, values, label) for one in (load(), load().eval()))
        changed = differ(as_saved, in_eval)
        live = [changed] if changed else []
    if not live:
        return []
    if not force_eval:
        raise _training.refusal(label, live)
    left = observe(load().eval(), names, example, values)
    if left:
        raise _training.refusal(label, left, forced="the mode was written into the network when it was traced")
    return [f"--force-eval: {', '.join(live)}; switched to eval mode"]


def _to_onnx(wrapper: Any, fed: Sequence[Fed], found: Sequence[Leaf], exported: str, label: str) -> None:
    import torch

    example = [tensor(one, "randn", label) for one in fed]
    weights = sum(held.numel() * held.element_size() for held in (*wrapper.parameters(), *wrapper.buffers()))
    names = [one.name for one in fed]
    outputs = output_names(found, names)
    opened = {one.name: one.open for one in fed if one.open}
    trials = _trials(fed)
    if opened:
        opened |= _open_outputs(wrapper, fed, outputs, trials, label)
    try:
        torch.onnx.export(
            wrapper,
            tuple(example),
            exported,
            dynamo=False,
            opset_version=_verify.OPSET,
            input_names=names,
            output_names=outputs,
            dynamic_axes=opened or None,
            # The exporter would store a table that two layers share a second time, transposed.
            do_constant_folding=not _stateful.shares_weights(wrapper),
            external_data=weights > _verify.EXTERNAL_BYTES,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        sys.exit("\n".join(str(error).splitlines()[:6]))
    if weights > _verify.EXTERNAL_BYTES:
        return
    session = _verify.open_session(exported)
    if session is None:
        return
    read = [one.name for one in session.get_inputs()]
    for sizes in trials:
        for draw in _verify.DRAWS:
            tensors = [tensor(one, draw, label, sizes) for one in fed]
            wanted = _tuple(wrapper(*tensors))
            feeds = {one.name: t.numpy() for one, t in zip(fed, tensors) if one.name in read}
            try:
                got = session.run(None, feeds)
            except Exception as error:
                if not sizes:
                    raise
                raise _not_open(sizes, label, (str(error).strip() or type(error).__name__).splitlines()[-1]) from error
            if sizes and [tuple(g.shape) for g in got] != [tuple(w.shape) for w in wanted]:
                raise _not_open(sizes, label, "the ONNX export keeps the sizes of the example")
            _verify.compare(got, wanted)


def _trials(fed: Sequence[Fed]) -> list[dict[str, int]]:
    """Sizes to try the network with: those of the example, every open one larger by itself, all of them 1."""
    symbols = sorted({symbol for one in fed for symbol in one.open.values()})
    return [
        {},
        *({symbol: OPEN_SIZE + 1 + at} for at, symbol in enumerate(symbols)),
        *([dict.fromkeys(symbols, 1)] * bool(symbols)),
    ]


def _open_outputs(
    wrapper: Any, fed: Sequence[Fed], outputs: Sequence[str], trials: Sequence[Mapping[str, int]], label: str
) -> dict[str, dict[int, str]]:
    """Sizes of outputs that follow from the open ones: by the symbol where they are equal, else by a name of their own.

    Raises:
        ModelError: the network cannot be run with another size.
    """
    seen: list[list[tuple[int, ...]]] = []
    for sizes in trials:
        try:
            results = _tuple(wrapper(*(tensor(one, "randn", label, sizes) for one in fed)))
        except Exception as error:
            raise _not_open(sizes, label, (str(error).strip() or type(error).__name__).splitlines()[-1]) from error
        seen.append([tuple(result.shape) for result in results])
    symbols = sorted({symbol for one in fed for symbol in one.open.values()})
    found: dict[str, dict[int, str]] = {}
    for position, name in enumerate(outputs):
        for axis, size in enumerate(seen[0][position]):
            held = [shapes[position][axis] for shapes in seen]
            if all(other == size for other in held):
                continue
            same = [s for s in symbols if held == [sizes.get(s, OPEN_SIZE) for sizes in trials]]
            found.setdefault(name, {})[axis] = same[0] if same else f"{name}_{axis}"
    return found


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _not_open(sizes: Mapping[str, int], label: str, why: str) -> ModelError:
    tried = ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items())
    return ModelError(f"{label} cannot be open in that size: with {tried}, {why}", remedy="Give a number.")


def output_names(found: Sequence[Leaf], taken: Sequence[str]) -> list[str]:
    """Names of the outputs: keys of a dict and fields of a named tuple, otherwise ``output`` and a number."""
    names: list[str] = []
    for position, leaf in enumerate(found):
        base = leaf.name or ("output" if len(found) == 1 else f"output_{position}")
        while base in taken or base in names:
            base += "_out"
        names.append(base)
    return names
