"""``edgeopt init``: a commented project file for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeopt.cli import _options as options
from edgeopt.cli._settings import known_targets

if TYPE_CHECKING:
    from edgeopt.model import TensorSpec

TEMPLATE = """\
# What `edgeopt build --target NAME` builds in this folder. Options of the command win over this file.
# Paths start from this folder. docs/project-file.md explains every key.
schema = "edgeopt.project/1"
model = {model}
{weights}{force_eval}{target}# name = "{name}"                # of the bundle and its files
# bundles = "bundles"            # each bundle gets a folder in it; this folder when absent

# Real inputs. Without calib no int8 activation is tried; eval judges the result, best with labels and a metric.
# calib = "calib.toml"
# eval = "eval.toml"

# effort = "standard"            # none, quick, standard or release: how long to measure
# max_drop = "1%"                # largest drop of the metric
# min_sqnr = 25                  # dB, the smallest of any output against the float model
# quantize = "auto"              # static, dynamic, weights-int8, weights-int4, float16, bfloat16 or none
# max_float_macs = "20%"         # multiply-accumulates that the search may keep in float to hold the limits above
# calib_memory = "192MB"         # what the statistics of a calibration may hold
# exclude = []                   # nodes that stay in float; `edgeopt inspect MODEL --nodes` lists them
# threads = 4                    # the target's when absent
# seconds = 60                   # upper bound on the measurement's time
# input = "uint8"                # raw pixels in: mean, std and layout of the image set fold into the graph
# input_layout = "NHWC"
# input_color = "rgb"
# fold_limit = "1KB"             # largest growth by one folded constant
# force_eval = true              # take a network captured in training mode as if in eval mode
# custom_ops = "libmine.so"      # shared library with the custom operators of the model
# keep_custom_ops = true         # build around unknown operators, unverified

# The inputs of the model:
{inputs}
{shapes}
# [budget]                       # nothing ships that is over a limit
# memory = "64MB"                # peak, runtime and model
# size = "5MB"
# p95 = "20ms"
# load = "200ms"                 # until the runtime has the model

# [max_error]                    # largest absolute error by output
# "NAME" = 0.05

# [targets.{example}]    # what one target says instead; any key above
# exclude = []
# budget = {{ memory = "32MB" }}
"""


@click.command()
@click.argument("model")
@click.option(
    "--target", "-t", shell_complete=known_targets, help="What `edgeopt build` builds for when it is not told."
)
@click.option("--weights", type=options.PATH, help="Weights for a factory: .safetensors or .pth.")
@click.option("--out", "-o", type=options.PATH, default=Path("edgeopt.toml"), show_default=True, help="The file.")
@click.option("--force-eval", is_flag=True, help="Take a network captured in training mode as if in eval mode.")
@click.option("--trust-pickle", is_flag=True, help="Let the model file run code of its own while it loads.")
@options.shape_option
def command(
    model: str,
    target: str | None,
    weights: Path | None,
    out: Path,
    force_eval: bool,
    trust_pickle: bool,
    shapes: Sequence[str],
) -> None:
    """Write a commented project file for MODEL; no file is overwritten."""
    from edgeopt import loaders
    from edgeopt.errors import EdgeoptError
    from edgeopt.project import read_project
    from edgeopt.target import load_target

    chosen = None if target is None else load_target(target)
    loaded = loaders.load(
        Path(model),
        shapes=options.parse_shapes(shapes),
        trust_pickle=trust_pickle,
        weights=weights,
        force_eval=force_eval,
    )
    text = TEMPLATE.format(
        model=_from(out, model),
        weights="" if weights is None else f"weights = {_from(out, str(weights))}\n",
        target="" if target is None else f"target = {_toml(target)}\n",
        name=loaders.default_name(model, weights),
        force_eval="force_eval = true\n" if force_eval else "",
        inputs="\n".join(f"#   {spec}" for spec in loaded.inputs),
        shapes=_shapes(loaded.inputs, shapes),
        example="raspberry-pi-5" if chosen is None or chosen.name == "host" else chosen.name,
    )
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise EdgeoptError(
            f"{out} cannot be written: {error.strerror}", remedy="Remove it first, or give another path with --out."
        ) from error
    read_project(out)
    options.emit_path(out)


def _toml(text: str) -> str:
    """A text as TOML: JSON's spelling is TOML's too."""
    return json.dumps(text, ensure_ascii=False)


def _from(out: Path, path: str) -> str:
    """A path as the file's folder sees it, as a TOML text; a factory as it is."""
    if not Path(path).exists():
        return _toml(path)
    import os

    return _toml(os.path.relpath(path, out.parent).replace(os.sep, "/"))


def _shapes(inputs: Sequence[TensorSpec], given: Sequence[str]) -> str:
    """The shapes that were given, else a commented line for every input whose dims are open."""
    if given:
        pairs = (text.rpartition("=") for text in given)
        return "\n".join(["", "[shapes]", *(f"{_toml(name)} = {_toml(shape)}" for name, _, shape in pairs), ""])
    opened = [spec for spec in inputs if any(isinstance(d, str) for d in spec.shape)]
    if not opened:
        return ""
    lines = ["", "# [shapes]                       # the open dims above can be fixed"]
    for spec in opened:
        shape = "x".join(str(d if isinstance(d, int) else 1) for d in spec.shape)
        lines.append(f"# {_toml(spec.name)} = {_toml(shape)}")
    return "\n".join([*lines, ""])
