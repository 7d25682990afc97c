"""Node orders that onnxruntime really follows, and the peak of each, as its own profile tells them.

With ``ExecutionOrder.PRIORITY_BASED`` the runtime takes, of the nodes that can run, the one that stands first in its
list (Shape and Size before all others). A file that it does not optimize it so follows in any order in which each node
has its producers before it; of one that it optimizes, what it fuses stands at the end of the list. Left to itself it
walks from the outputs to the inputs, depth first, and of the producers of one node the one that stands last runs first.

So some orders of the file are tried in both ways, one run each. The profile says in which order the nodes ran, what
shapes they made, and the most bytes that the arena had given out at once, work space of kernels and operators that work
in place included. With one thread nothing of it depends on chance.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.interpreter import import_onnxruntime, session_errors
from edgeopt.passes import reorder

FILE_ORDER: Mapping[str, str] = {"order": "file"}

MIN_SHARE = 0.99
"""The peak has to be below this share of the one before: less is lost in how the runtime rounds and places blocks."""

_KERNEL = "_kernel_time"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordered:
    """A model in another order of nodes, with the runner's options for it, and the peak of live bytes in each."""

    model: ir.Model
    options: Mapping[str, str]
    before: int
    after: int


def lower_peak(path: Path, feeds: Mapping[str, Any], scratch: Path, *, own: bool) -> Ordered | str:
    """The order with the lowest peak of those tried; why not, where none has a lower one than the file as it is.

    Args:
        path: an ``.onnx`` file.
        feeds: a sample, array by input name.
        scratch: folder for files that are gone at the end.
        own: it holds the runtime's own graph, which is loaded with its optimizer off.

    Raises:
        ModelError: the runtime does not run it, or does not tell how.
    """
    _, before = _ran(ir.load(path), feeds, scratch, optimize=not own)
    plain, _ = _ran(ir.load(path), feeds, scratch, optimize=False)
    if isinstance(said := reorder.reorder(plain), str) and own:
        return said
    order = _numbers(plain)
    if sorted(order) != list(range(len(ir.load(path).graph))):
        return "the runtime runs other nodes than the file has, even with its optimizer off"
    best: Ordered | None = None
    for candidate, options in ((order, FILE_ORDER), (order, {}), (_turned(path, order), {})):
        model = _in_order(path, candidate)
        _, after = _ran(_in_order(path, candidate), feeds, scratch, optimize=not own, follow=bool(options))
        if after <= MIN_SHARE * (before if best is None else best.after):
            best = Ordered(model=model, options=options, before=before, after=after)
    return best or f"no order was found that it runs in with a lower peak than {before:,} bytes"


def _numbers(model: ir.Model) -> list[int]:
    """Places in the file by the names that ``_ran`` gave; -1 for a node that the runtime made itself.

    It gives every reader of a DequantizeLinear a copy of its own, ``10/duplicated``; the first of them counts.
    """
    numbers = [str(node.name).partition("/")[0] for node in model.graph]
    return list(dict.fromkeys(int(number) if number.isdecimal() else -1 for number in numbers))


def _in_order(path: Path, order: Sequence[int]) -> ir.Model:
    model = ir.load(path)
    nodes = list(model.graph)
    model.graph.remove(nodes)
    model.graph.extend(nodes[index] for index in order)
    return model


def _turned(path: Path, order: Sequence[int]) -> list[int]:
    """An order of the file after which the runtime's walk runs branches as ``order`` has them.

    The walk takes the producer that stands last first; so here a branch that runs late stands before one that runs
    early, each behind what it needs.
    """
    nodes = list(ir.load(path).graph)
    place = {node: index for index, node in enumerate(nodes)}
    rank = {index: at for at, index in enumerate(order)}
    needs = [
        sorted(
            {place[p] for v in reorder.reads(node) if (p := v.producer()) in place and p is not None},
            key=rank.__getitem__,
        )
        for node in nodes
    ]
    read = {before for row in needs for before in row}
    stack = [(index, False) for index in sorted(set(rank) - read, key=rank.__getitem__)]
    found: list[int] = []
    entered: set[int] = set()
    while stack:
        index, left = stack.pop()
        if left:
            found.append(index)
        elif index not in entered:
            entered.add(index)
            stack.append((index, True))
            stack.extend((before, False) for before in needs[index])  # the one that runs last is on top
    return found


def _ran(
    model: ir.Model, feeds: Mapping[str, Any], scratch: Path, *, optimize: bool, follow: bool = False
) -> tuple[ir.Model, int]:
    """The graph that the runtime runs, its nodes in the order in which it ran them, with types and shapes; its peak.

    A node that the runtime leaves as it is has the number of its place in ``model``'s list for a name. The peak is that
    of the arena in bytes; where the profile does not tell, that of the tensors.

    Args:
        model: gets other names for its nodes.
        follow: by priority, not depth first.

    Raises:
        ModelError: the runtime does not run it, or a node is not in its profile.
    """
    ort = import_onnxruntime()
    for index, node in enumerate(model.graph):
        node.name = str(index)
    outer = set(model.graph)
    for index, node in enumerate(model.graph.all_nodes()):
        if node not in outer:
            node.name = f"inner {index}"
    source, out = scratch / "to-run.onnx", scratch / "as-run.onnx"
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.enable_mem_pattern = False
    settings.add_session_config_entry("session.disable_prepacking", "1")  # packed nodes are missing in the profile
    level = ort.GraphOptimizationLevel
    settings.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    settings.optimized_model_filepath = str(out)
    settings.enable_profiling, settings.profile_file_prefix = True, str(scratch / "profile")
    if follow:
        settings.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    try:
        ir.external_data.load_to_model(model)
        source.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
        session = ort.InferenceSession(str(source), settings, providers=["CPUExecutionProvider"])
        session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8", errors="replace"))
        del session
        written = ir.load(out)
        ir.external_data.load_to_model(written)
    except session_errors() as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"onnxruntime {ort.__version__} does not run the nodes in another order: {line}") from error
    finally:
        for file in (source, out, *scratch.glob("profile*.json"), *scratch.glob("as-run.onnx*")):
            file.unlink(missing_ok=True)
    _arrange(written.graph, events)
    for value in written.graph.inputs:
        if value.name in feeds:
            value.shape = ir.Shape(feeds[str(value.name)].shape)
    peaks = [int(event["args"]["mem_in_use_peak"]) for event in _kernels(events) if "mem_in_use_peak" in event["args"]]
    peak = max(peaks, default=reorder.peak_bytes(written.graph))
    if peak is None:
        raise ModelError("the runtime's profile does not tell how much memory its nodes take")
    return written, peak


def _arrange(graph: ir.Graph, events: Sequence[Mapping[str, Any]]) -> None:
    """Put nodes into the order of a profile and give what they make its types and shapes.

    Raises:
        ModelError: a node is not in it.
    """
    shapes = {str(e["name"])[: -len(_KERNEL)]: _made(e) for e in _kernels(events)}
    nodes = {str(node.name): node for node in graph if node.op_type != "Constant"}
    lost = sorted(set(nodes) - set(shapes))
    if lost or len(nodes) < sum(node.op_type != "Constant" for node in graph):
        which = ", ".join(lost[:3]) or "a name is double"
        raise ModelError(f"the runtime's profile does not name every node ({which})")
    order = [node for node in graph if node.op_type == "Constant"] + [nodes[name] for name in shapes if name in nodes]
    graph.remove(order)
    graph.extend(order)
    for name, node in nodes.items():
        given = [value for value in node.outputs if value.name]
        for value, made in zip(given, shapes[name]):
            if made is not None:
                value.dtype, value.shape = made


def _kernels(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What nodes of a session ran, the first run of each, in order."""
    seen: set[str] = set()
    for event in sorted((e for e in events if e.get("cat") == "Node"), key=lambda e: int(e["ts"])):
        name = str(event.get("name", ""))
        if name.endswith(_KERNEL) and name not in seen:
            seen.add(name)
            yield event


def _made(event: Mapping[str, Any]) -> list[tuple[ir.DataType, ir.Shape] | None]:
    found: list[tuple[ir.DataType, ir.Shape] | None] = []
    for entry in event.get("args", {}).get("output_type_shape", ()):
        kind, dims = next(iter(entry.items()), ("", ()))
        dtype = _TYPES.get(kind)
        found.append(None if dtype is None else (dtype, ir.Shape([int(size) for size in dims])))
    return found


_TYPES: Mapping[str, ir.DataType] = {
    "float": ir.DataType.FLOAT,
    "double": ir.DataType.DOUBLE,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "bool": ir.DataType.BOOL,
    **{
        f"{sign}int{width}": ir.DataType[f"{sign}int{width}".upper()] for sign in ("", "u") for width in (8, 16, 32, 64)
    },
}
"""Element types by their names in a profile."""
