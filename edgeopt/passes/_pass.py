"""The contract of a pass and the one function that applies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.errors import EdgeoptError
from edgeopt.model import NODE_KEY, Model, TensorSpec
from edgeopt.passes._graph import complete_keys
from edgeopt.target import Target

NAMED = 3
"""How many node keys one refusal reason lists before "and n more"."""


class Refusal(NamedTuple):
    """A place that looked like a candidate and was left alone.

    Attributes:
        node: key of the node, or ``"model"``.
        why: a short noun phrase, equal for equal reasons, e.g. ``"weights are not constant"``.
    """

    node: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewritten:
    """What a rewrite did: places changed, and candidates it refused. A plain ``int`` stands for no refusals."""

    count: int
    refusals: tuple[Refusal, ...] = ()


def never(model: Model, target: Target | None) -> str | None:
    """The ``refuses`` of a pass that may always run: it judges node by node."""
    return None


def timed_on_x86(model: Model, target: Target | None) -> str | None:
    """The ``refuses`` of a pass that pays by timings, which were made on x86-64 alone."""
    return None if target is None or target.arch == "x86_64" else "whether it pays was timed on x86_64 only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """A rewrite of a whole model.

    Attributes:
        name: kebab-case, shown in the diary.
        rewrite: edits the (cloned) graph; returns how many places changed, with refusals where there are any.
        tolerance: largest allowed max|difference| / max|reference| of any output on real inputs.
        gain: what it would gain, a noun phrase for the plan and the diary.
        params: what it was made with, as plain JSON values; a lock holds them.
        refuses: why the pass must not run on this model for this target; None lets it run.
    """

    name: str
    rewrite: Callable[[ir.Model], int | Rewritten]
    tolerance: float
    gain: str = "same values, less work or fewer bytes"
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    refuses: Callable[[Model, Target | None], str | None] = never


@dataclasses.dataclass(frozen=True, kw_only=True)
class Applied:
    """The outcome of one pass.

    Attributes:
        model: the rewritten model, or the very one that was passed in when ``count`` is 0.
        count: places changed.
        reason: why nothing changed; after a change, what was left alone and why ("" when nothing was).
        refusals: the same, place by place.
    """

    model: Model
    count: int
    reason: str
    refusals: tuple[Refusal, ...] = ()


def apply(pass_: Pass, model: Model, target: Target | None = None) -> Applied:
    """Clone (tensors are shared), ask, rewrite; keep the old model when nothing changed.

    Raises:
        EdgeoptError: the pass changed the names, order or types of the model's inputs or outputs (a bug in the pass).
    """
    reason = pass_.refuses(model, target)
    if reason is not None:
        return Applied(model=model, count=0, reason=reason)
    changed = model.clone()
    outcome = pass_.rewrite(changed.ir)
    done = Rewritten(count=outcome) if isinstance(outcome, int) else outcome
    reason = describe(done.refusals)
    if done.count == 0:
        return Applied(model=model, count=0, reason=reason or "nothing to rewrite", refusals=done.refusals)
    _check_interface(pass_, model, changed)
    if any(NODE_KEY in node.metadata_props for node in model.nodes()):
        complete_keys(changed.ir)
    return Applied(model=changed, count=done.count, reason=reason, refusals=done.refusals)


def describe(refusals: Iterable[Refusal]) -> str:
    """One sentence: ``"3 candidates refused: second consumer (conv1, conv2), weights are not constant (conv7)"``."""
    by_reason: dict[str, list[str]] = {}
    for refusal in refusals:
        by_reason.setdefault(refusal.why, []).append(refusal.node)
    if not by_reason:
        return ""
    total = sum(map(len, by_reason.values()))
    parts = []
    for why, nodes in by_reason.items():
        more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
        parts.append(f"{why} ({', '.join(nodes[:NAMED])}{more})")
    return f"{total} candidate{'s' if total > 1 else ''} refused: {', '.join(parts)}"


def _check_interface(pass_: Pass, before: Model, after: Model) -> None:
    def names(specs: Iterable[TensorSpec]) -> list[tuple[str, str]]:
        return [(s.name, s.dtype) for s in specs]

    overridable = set(before.graph.initializers)
    inputs = [s for s in before.inputs if s.name not in overridable or s.name in {v.name for v in after.graph.inputs}]
    if names(inputs) != names(after.inputs) or names(before.outputs) != names(after.outputs):
        raise EdgeoptError(
            f'pass "{pass_.name}" changed the inputs or outputs of the model',
            remedy="This is a bug in the pass; report it with the model.",
        )
