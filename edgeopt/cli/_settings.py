"""What to build: options that ``build`` and ``plan`` share, over the project file of the working folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeopt.budget import BUILT_FOR, CALIB_MEMORY, MAX_FLOAT_MACS, OBJECTIVES, QUANTIZE
from edgeopt.cli import _options as options

if TYPE_CHECKING:
    from edgeopt.pipeline import Request
    from edgeopt.project import Settings

ALL = "all"
"""In the place of a target: every profile. `edgeopt plan` takes it."""

_EFFORTS = ("none", "quick", "standard", "release")


def known_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from edgeopt.target import list_targets

    names = [word for info in list_targets() for word in (info.name, *info.aliases)]
    return sorted(name for name in names if name.startswith(incomplete))


_OPTIONS = (
    click.argument("model", required=False),
    click.option(
        "--target",
        "-t",
        shell_complete=known_targets,
        help="A target's name (see `edgeopt targets list`) or a profile's path.",
    ),
    click.option("--calib", metavar="SET", help="Calibration set: a .toml, .npz, .npy, a folder, or 'random'."),
    click.option("--eval", "evaluate", metavar="SET", help="Evaluation set, best with labels and a metric."),
    click.option("--budget", metavar="TEXT", help="Limits, such as memory=64MB,size=5MB,p95=20ms,load=200ms."),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        help="Try everything and ship what is best by it.  [default: the first that holds the budget]",
    ),
    click.option(
        "--max-drop", metavar="SHARE", help="Largest drop of the metric, such as 1%.  [default: not clearly above 1%]"
    ),
    click.option("--min-sqnr", metavar="DB", help="Smallest SQNR of any output against the float model, such as 25."),
    click.option(
        "--max-error",
        multiple=True,
        metavar="OUTPUT=VALUE",
        help="Largest absolute error of an output; repeatable.",
    ),
    click.option(
        "--backend", type=click.Choice(BUILT_FOR), help="Build for it.  [default: the target's first one here]"
    ),
    click.option(
        "--quantize", type=click.Choice(QUANTIZE), help="What to reduce weights and activations to.  [default: auto]"
    ),
    click.option("--max-float-macs", metavar="SHARE", help="What the search may keep in float.  [default: 20%]"),
    click.option("--calib-memory", metavar="SIZE", help="What statistics may hold in memory.  [default: 192MB]"),
    click.option("--exclude", multiple=True, metavar="NODE", help="Keep a node in float, by name or key; repeatable."),
    options.shape_option,
    click.option("--name", help="Name of the bundle and its files.  [default: the model's]"),
    click.option("--weights", metavar="FILE", help="Weights for a factory: .safetensors or .pth."),
    click.option("--input", "input_type", type=click.Choice(["uint8"]), help="Raw pixels in: the arithmetic folds in."),
    click.option(
        "--input-layout", type=click.Choice(["NHWC", "NCHW"]), help="Axes of the pixels.  [default: the model's]"
    ),
    click.option(
        "--input-color", type=click.Choice(["rgb", "bgr"]), help="Channel order of the pixels.  [default: rgb]"
    ),
    click.option("--fold-limit", metavar="SIZE", help="Largest growth by one folded constant.  [default: 1KB]"),
    click.option("--force-eval", is_flag=True, help="Take a network captured in training mode as if in eval mode."),
    click.option("--custom-ops", metavar="LIBRARY", help="Shared library with custom operators."),
    click.option("--keep-custom-ops", is_flag=True, help="Build around unknown operators, unverified."),
    click.option("--trust-pickle", is_flag=True, help="Let the model file run code of its own while it loads."),
    click.option("--effort", type=click.Choice(_EFFORTS), help="How long to measure.  [default: quick]"),
    click.option("--seconds", type=click.FloatRange(min=1), help="Upper bound on the measurement's time."),
    options.threads_option,
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add MODEL and the shared options; the command gets them as ``request``, without ``out`` and ``locked``."""

    @functools.wraps(command)
    def collected(
        model: str | None, target: str | None, trust_pickle: bool, shapes: tuple[str, ...], **given: Any
    ) -> None:
        from edgeopt.project import Settings

        own = {name: given.pop(name) for name in Settings.__dataclass_fields__ if name in given}
        own["budget"] = _limits(own["budget"], own["max_drop"])
        own["max_error"] = _errors(own["max_error"])
        stated = {name: value for name, value in own.items() if value not in (None, (), False)}
        flags = Settings(model=model, shapes=_shapes(shapes), **stated)
        command(request=_request(flags, target, trust_pickle), **given)

    decorated = collected
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _shapes(texts: tuple[str, ...]) -> dict[str, str] | None:
    options.parse_shapes(texts)
    return {name: shape for name, _, shape in (text.rpartition("=") for text in texts)} or None


def _limits(budget: str | None, max_drop: str | None) -> dict[str, str] | None:
    from edgeopt.budget import parse_budget

    try:
        parse_budget(budget, max_drop)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    parts = (part.partition("=") for part in (budget or "").split(",") if part.strip())
    return {key.strip(): value.strip() for key, _, value in parts} or None


def _errors(texts: tuple[str, ...]) -> dict[str, float] | None:
    from edgeopt.budget import parse_errors

    try:
        return parse_errors("--max-error", texts) or None
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _request(flags: Settings, target: str | None, trust_pickle: bool) -> Request:
    """What to build. The project file speaks only where no MODEL is named: its data belongs to its model."""
    from edgeopt.budget import parse_share, parse_size
    from edgeopt.bundle import safe_name
    from edgeopt.loaders import default_name
    from edgeopt.pipeline import Request
    from edgeopt.project import budget_of, check_name, find_project, read_project
    from edgeopt.target import load_target

    found = find_project(Path()) if flags.model is None else None
    project = None if found is None else read_project(found)
    if flags.model is None and project is None:
        raise click.UsageError(
            "Missing argument MODEL, and there is no edgeopt.toml here: name a model, or let `edgeopt init MODEL` "
            "write the file."
        )
    named = target or (None if project is None else project.target)
    if named is None:
        raise click.UsageError(
            "Missing option --target: which device is it for? `edgeopt targets list` shows the profiles."
        )
    settings = (
        flags
        if project is None
        else flags.over(project.settings if named == ALL else project.for_target(load_target(named)))
    )
    if settings.model is None:
        raise click.UsageError(f'{found} names no model: add `model = "FILE"`, or name one.')
    try:
        limits = budget_of(settings)
        check_name(settings.name or "model")
        limit = None if settings.fold_limit is None else parse_size("fold-limit", settings.fold_limit)
        memory = parse_size("calib-memory", settings.calib_memory or f"{CALIB_MEMORY}B")
        share = parse_share("max-float-macs", settings.max_float_macs or f"{100 * MAX_FLOAT_MACS:g}%")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if settings.input_type is None and (settings.input_layout or settings.input_color):
        raise click.UsageError("--input-layout and --input-color say how raw pixels come: add --input uint8.")
    weights = None if settings.weights is None else Path(settings.weights)
    name = safe_name(settings.name or default_name(settings.model, weights))
    return Request(
        model=Path(settings.model),
        target=named,
        out=Path(settings.bundles or "") / f"{name}-{Path(named).stem}",
        name=settings.name,
        calib=settings.calib,
        evaluate=settings.evaluate,
        budget=limits,
        exclude=settings.exclude or (),
        shapes=options.parse_shapes([f"{name}={shape}" for name, shape in (settings.shapes or {}).items()]),
        effort=settings.effort or "quick",
        seconds=settings.seconds,
        threads=settings.threads,
        trust_pickle=trust_pickle,
        weights=weights,
        force_eval=bool(settings.force_eval),
        custom_ops=None if settings.custom_ops is None else Path(settings.custom_ops),
        keep_custom_ops=bool(settings.keep_custom_ops),
        input_type=settings.input_type,
        input_layout=settings.input_layout,
        input_color=settings.input_color,
        fold_limit=limit,
        backend=settings.backend,
        quantize=settings.quantize or "auto",
        calib_memory=memory,
        max_float_macs=share,
        objective=settings.objective,
    )
