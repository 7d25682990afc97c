"""``edgeopt plan``: what a build would try, and why; nothing is run."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli import _options as options
from edgeopt.cli._settings import ALL, model_options
from edgeopt.cli._survey import show as show_survey
from edgeopt.console import bytes_text, fields, result_table

if TYPE_CHECKING:
    from edgeopt.budget import Budget
    from edgeopt.memory import Footprint
    from edgeopt.pipeline import Request
    from edgeopt.pipeline.static import StaticPlan


@click.command()
@model_options
@click.option(
    "--memory-at",
    "vary",
    multiple=True,
    metavar="NAME=8x3x224x224",
    help="Predict the memory for another shape of an input too, such as a batch or a resolution. Repeatable.",
)
@options.json_option
def command(request: Request, vary: tuple[str, ...], as_json: bool) -> None:
    """Show the steps that a build of MODEL would try, with the bytes that shapes and types predict.

    Takes the options of `edgeopt build`. No model is run: what a step costs in quality and time only a build can tell.
    With `--target all`, every profile and backend: does it fit, does every operator run, what would have to change.
    """
    from edgeopt.pipeline.static import plan

    if request.target == ALL:
        if vary:
            raise click.UsageError("--memory-at takes one target, not all of them.")
        show_survey(request, as_json=as_json)
        return

    found = plan(request, [options.parse_shapes([text], "--memory-at") for text in vary])
    if as_json:
        options.emit_json(_described(found))
        return
    target, choice = found.target, found.choice
    why = f" (instead of {choice.preferred}: {choice.reason})" if choice.reason else ""
    fields(
        [
            ("model", str(request.model)),
            ("target", f"{target.name}: {target.description}"),
            ("runtime", f"{choice.name}{why}"),
            ("as loaded", _cost(found.before)),
            ("predicted", _cost(found.steps[-1].after if found.steps else found.before)),
            ("not counted", "the runtime itself; `edgeopt build` measures it"),
            *_over(request.budget, found.steps[-1].after if found.steps else found.before),
        ],
        stream=sys.stdout,
    )
    if found.warnings:
        fields([("warning", text) for text in found.warnings], stream=sys.stdout)
    click.echo()
    rows = [
        (
            planned.step.name,
            planned.status,
            bytes_text(planned.after.weight_bytes),
            _bytes(planned.after.peak_activation_bytes),
            str(planned.after.nodes),
            planned.reason if planned.status != "applies" else f"{planned.reason} ({planned.step.why})",
        )
        for planned in found.steps
        if planned.status != "nothing to do"
    ]
    result_table(("step", "would it", "weights", "activations", "nodes", "why"), rows, stream=sys.stdout)
    idle = [planned.step.name for planned in found.steps if planned.status == "nothing to do"]
    if idle:
        fields([("nothing to do", ", ".join(idle))], stream=sys.stdout)
    if found.memory:
        click.echo()
        _memory_table(found)


def _memory_table(found: StaticPlan) -> None:
    """What the runtime is expected to need, by shape and type."""
    rows = []
    for row in found.memory:
        shapes = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in row.shapes.items())
        for kind, one in (("float", row.plain), ("int8", row.int8)):
            if one is not None:
                held, at = bytes_text(one.weights + one.packed), ", ".join(one.peak_operators[:1])
                rows.append((shapes or "as loaded", kind, _bytes(one.total), held, _bytes(one.activations), at))
    result_table(
        ("memory, predicted", "type", "model", "weights held", "activations", "peak at"), rows, stream=sys.stdout
    )


def _over(budget: Budget, cost: Footprint) -> list[tuple[str, str]]:
    """Limits that the model alone breaks, whatever the runtime takes."""
    least = {
        "size": (budget.artifact_bytes, cost.weight_bytes),
        "memory": (budget.peak_bytes, cost.weight_bytes + (cost.peak_activation_bytes or 0)),
    }
    return [
        ("over budget", f"{name} {bytes_text(limit)}: the model alone takes {bytes_text(taken)}")
        for name, (limit, taken) in least.items()
        if limit is not None and taken > limit
    ]


def _cost(cost: Footprint) -> str:
    return (
        f"{bytes_text(cost.weight_bytes)} of weights, {_bytes(cost.peak_activation_bytes)} of activations at the peak, "
        f"{cost.nodes} nodes" + (f" (with {', '.join(cost.assumed)})" if cost.assumed else "")
    )


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else bytes_text(count)


def _described(found: StaticPlan) -> dict[str, Any]:
    def cost(footprint: Footprint) -> dict[str, Any]:
        return {
            "weight_bytes": footprint.weight_bytes,
            "peak_activation_bytes": footprint.peak_activation_bytes,
            "nodes": footprint.nodes,
            "assumed": list(footprint.assumed),
        }

    return {
        "target": found.target.name,
        "backend": found.choice.name,
        "backend_reason": found.choice.reason,
        "warnings": list(found.warnings),
        "memory": [
            {
                "shapes": {name: list(shape) for name, shape in row.shapes.items()},
                **{
                    kind: None if one is None else {**dataclasses.asdict(one), "total": one.total}
                    for kind, one in (("float", row.plain), ("int8", row.int8))
                },
            }
            for row in found.memory
        ],
        "before": cost(found.before),
        "steps": [
            {
                "kind": planned.step.kind,
                "name": planned.step.name,
                "params": dict(planned.step.params),
                "why": planned.step.why,
                "status": planned.status,
                "reason": planned.reason,
                "after": cost(planned.after),
            }
            for planned in found.steps
        ],
    }
