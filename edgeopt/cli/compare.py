"""``edgeopt compare``: whether B is worse than A, with intervals, and gates for a release script."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import (
    PATH,
    emit_json,
    emit_text,
    json_option,
    parse_shapes,
    quiet_option,
    shape_option,
    steps,
    threads_option,
    warn,
)
from edgeopt.console import fields, result_table


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from edgeopt.comparing import parse_share

    if value is None:
        return None
    try:
        share = parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    if param.name == "max_drop" and share > 1:
        raise click.BadParameter(f'"{value}" is more than 100%', ctx, param)
    return share


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--max-slowdown", metavar="SHARE", callback=_share, help="Gate on the median latency, such as 3%.")
@click.option("--max-growth", metavar="SHARE", callback=_share, help="Gate on the peak memory, such as 5%.")
@click.option("--max-drop", metavar="SHARE", callback=_share, help="Gate on the right answers, such as 0.5%.")
@click.option("--strict", is_flag=True, help="An undecided gate fails too.")
@click.option("--recorded", is_flag=True, help="Compare what two bundles recorded; measure nothing.")
@click.option("--allow-unlike", is_flag=True, help="Compare recordings made under unlike conditions.")
@click.option("--data", metavar="SET", help="Judge both on this set now, best with labels.")
@click.option(
    "--effort",
    type=click.Choice(["quick", "standard", "release"]),
    default="standard",
    show_default=True,
    help="How long to measure.",
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Limit of the time spent on measuring.")
@threads_option
@shape_option
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the result as JSON, raw samples included.")
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the result as Markdown, for a pull request.")
@quiet_option
@click.pass_context
def command(
    ctx: click.Context,
    a: Path,
    b: Path,
    max_slowdown: float | None,
    max_growth: float | None,
    max_drop: float | None,
    strict: bool,
    recorded: bool,
    allow_unlike: bool,
    data: str | None,
    effort: str,
    seconds: float | None,
    threads: int | None,
    shapes: Sequence[str],
    output: Path | None,
    as_json: bool,
    as_markdown: bool,
    quiet: bool,
) -> None:
    """Say whether B is faster or slower than A, larger or smaller, better or worse.

    A and B are bundle folders, .onnx models, OpenVINO's .xml with the .bin beside it, or files that `edgeopt bench -o`
    wrote; PATH#NAME chooses an artifact of a bundle or a subject of a file. Bundles and models are measured now, in
    alternation, until the 95 % interval of the ratio is 1 % wide to either side. Recordings are compared as they are.

    A gate is broken (exit 10) where the whole interval lies beyond its limit; where the interval reaches over the
    limit the gate is undecided, which is a warning, or with --strict exit 10.
    """
    from edgeopt import comparing
    from edgeopt.cli._output import check_output, write_whole
    from edgeopt.comparing.markdown import grade_words

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown are two forms of one result: give one.", ctx)
    request = comparing.Request(
        a=a,
        b=b,
        limits=comparing.Limits(slowdown=max_slowdown, growth=max_growth, drop=max_drop),
        recorded=recorded,
        allow_unlike=allow_unlike,
        data=data,
        effort=effort,
        seconds=seconds,
        threads=threads,
        shapes=parse_shapes(shapes),
    )
    if comparing.is_recorded(request):
        _refuse_unused(ctx, ("effort", "seconds", "threads", "shapes"))
    if output is not None:
        check_output(output, comparing.SCHEMA.partition("/")[0])
    result = comparing.run(request, steps(quiet))
    if output is not None:
        write_whole(output, result)
    if as_json:
        emit_json(result)
    elif as_markdown:
        emit_text(comparing.markdown(result).rstrip("\n"))
    else:
        _show(result)
    if output is not None and not as_json and not as_markdown:
        click.echo(f"written: {output}", err=True)
    for label in "ab":
        if result[label]["grade"] == "unstable":
            warn(f"the measurement of {label.upper()} is {grade_words(result[label])}")
    for text in comparing.enforce(result["gates"], strict=strict):
        warn(text)


def _refuse_unused(ctx: click.Context, names: Sequence[str]) -> None:
    given = click.core.ParameterSource.COMMANDLINE
    for name in names:
        if ctx.get_parameter_source(name) == given:
            option = "shape" if name == "shapes" else name
            raise click.UsageError(f"--{option} means nothing here: recordings are compared, nothing is measured.", ctx)


def _show(result: Mapping[str, Any]) -> None:
    from edgeopt.comparing.markdown import STATES, conditions, headline, quality_words, table_rows

    out = sys.stdout
    if result["unlike"]:
        fields([("UNLIKE", text) for text in result["unlike"]], stream=out)
    emit_text(headline(result))
    emit_text("")
    result_table(("figure", "A", "B", "B / A", "95 % interval", "verdict"), table_rows(result), stream=out)
    emit_text("")
    rows = [("quality", quality_words(result["quality"]))]
    rows += [(f"gate {STATES[gate['state']]}", gate["text"]) for gate in result["gates"]]
    fields([*rows, *conditions(result)], stream=out)
