"""``edgeopt bench``: latency and memory of a bundle's artifacts, or of one ONNX model, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgeopt.cli._options import (
    PATH,
    custom_ops_option,
    effort_option,
    emit_json,
    emit_path,
    json_option,
    parse_shapes,
    quiet_option,
    shape_option,
    steps,
    threads_option,
    warn,
)
from edgeopt.cli._output import check_output, write_whole
from edgeopt.console import printable
from edgeopt.errors import BenchError, BundleError, EdgeoptError, ModelError, ToolchainError

if TYPE_CHECKING:
    from edgeopt.model import TensorSpec
    from runtime_bench import Subject

_FAILURES: Mapping[int, type[EdgeoptError]] = {6: ToolchainError, 9: BundleError}
_SEED = 7
_WIDEST = 120
"""Columns of the screen on a wider terminal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What to measure.

    Attributes:
        subjects: baseline first.
        samples: inputs as ``.npy`` paths by name.
        inputs: a remark on them.
        isa: instruction-set features that the target has, where its architecture is this one.
    """

    subjects: list[Subject]
    samples: list[dict[str, str]]
    threads: int
    inputs: str
    isa: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asked:
    """Where to run: a provider, None for the usual one, whether another one will do, and with which operators."""

    provider: str | None
    allow_fallback: bool
    custom_ops: Path | None


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number")
    return value


@click.command()
@click.argument("model", type=PATH)
@effort_option
@threads_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    help="Limit of the time spent on measuring.",
)
@click.option(
    "--fps",
    type=click.FloatRange(min=0.1, max=10_000),
    callback=_finite,
    help="Call at this rate, timed from when each call was due, and count missed deadlines.  [default: back to back]",
)
@click.option(
    "--provider",
    metavar="NAME",
    help="Execution provider to run on: cpu, cuda, tensorrt, openvino, ...  [default: the bundle's; of a model: cpu]",
)
@click.option("--allow-fallback", is_flag=True, help="Measure even where nodes run on another provider than asked for.")
@click.option("--no-pin", is_flag=True, help="Leave processes to the scheduler instead of keeping them on fixed CPUs.")
@shape_option
@custom_ops_option
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the measurement, raw samples included, as JSON.")
@json_option
@quiet_option
def command(
    model: Path,
    effort: str,
    threads: int | None,
    seconds: float | None,
    fps: float | None,
    provider: str | None,
    allow_fallback: bool,
    no_pin: bool,
    shapes: Sequence[str],
    custom_ops: Path | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a bundle folder, or an ONNX model, on this machine.

    Of a bundle the default artifact is measured against the float one, in alternation and in fresh processes. A
    percentile needs 36 (p90), 72 (p95), 368 (p99) or 3688 (p99.9) calls; with fewer it is not given. Memory is three
    figures: the interpreter, what the runtime adds to it, and what the model adds to that.

    Exit 6 when the provider is not there, 8 when nodes run elsewhere than asked or the measurement is invalid.
    """
    import runtime_bench

    fixed = parse_shapes(shapes)
    if output is not None:
        check_output(output, "edgeopt.measurement")
    step = steps(quiet)
    asked = _Asked(provider=provider, allow_fallback=allow_fallback, custom_ops=custom_ops)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(_bundle_work(model, asked) if model.is_dir() else _model_work(model, fixed, asked))
        try:
            with step(f"measure {' and '.join(s.name for s in work.subjects)} ({effort})"):
                measurement = runtime_bench.measure(
                    work.subjects,
                    work.samples,
                    effort=effort,
                    threads=threads or work.threads,
                    seconds=seconds,
                    fps=fps,
                    pin=not no_pin,
                    allow_fallback=allow_fallback,
                    isa=work.isa,
                )
        except runtime_bench.BenchFailure as error:
            kind = ToolchainError if error.code == 6 else BenchError
            raise kind(str(error), remedy="Run `edgeopt doctor` to see what this machine has.") from error
    if output is not None:
        write_whole(output, measurement)
    _show(measurement, model.name, work.inputs, sys.stderr if as_json or output is not None else sys.stdout)
    if as_json:
        emit_json(measurement)
    elif output is not None:
        emit_path(output)
    _refuse_invalid(measurement, allow_fallback)


@contextlib.contextmanager
def _bundle_work(root: Path, asked: _Asked) -> Iterator[_Work]:
    from edgeopt.bundle import MEND, read
    from runtime_bench import Subject, VerifyFailure, manifest, sums, verify

    read(root)
    try:
        library = None if asked.custom_ops is None else str(asked.custom_ops)
        contract = verify.with_library(manifest.parse(manifest.read(str(root))), library)
        manifest.check_files(contract, sums.check_listed(str(root), sums.DEVICE))
        contract = contract._replace(provider=asked.provider or contract.provider)
        for text in verify.machine_warnings(contract):
            warn(text)
        verify.require_runtime(contract, asked.allow_fallback)
    except VerifyFailure as failure:
        kind = _FAILURES.get(failure.code, BundleError)
        remedy = failure.remedy or (None if kind is ToolchainError else MEND)
        raise kind(f"{root}: {failure.message}", remedy=remedy) from failure
    chosen = [artifact for artifact in (contract.fallback, contract.default) if artifact is not None]
    same = len({artifact.precision for artifact in chosen}) < len(chosen)
    yield _Work(
        subjects=[
            Subject(
                name=artifact.role if same else artifact.precision,
                path=str(root / artifact.path),
                sha256=artifact.sha256,
                runner=contract.backend,
                options={**contract.options_of(artifact), "provider": contract.provider},
                file=artifact.path,
                precision=artifact.precision,
                data=None if artifact.data is None else str(root / artifact.data.path),
            )
            for artifact in chosen
        ],
        samples=[
            {name: str(root / path) for name, path in zip(contract.inputs, sample.inputs, strict=True)}
            for sample in contract.samples
        ],
        threads=contract.threads,
        inputs=f"{len(contract.samples)} golden samples of the bundle",
        isa=verify.target_isa(contract),
    )


@contextlib.contextmanager
def _model_work(path: Path, shapes: Mapping[str, tuple[int, ...]], asked: _Asked) -> Iterator[_Work]:
    """An ONNX file as it is, with seeded random inputs: latency is measured, not quality."""
    from edgeopt import host, loaders
    from edgeopt.model import file_sha256

    model = loaders.load(path, shapes=shapes)
    if model.origin.format != "onnx":
        raise ModelError(f"{path} is {model.origin.format}: only ONNX models run as they are", remedy="Build it first.")
    from runtime_bench import Subject

    options = {} if asked.provider is None else {"provider": asked.provider}
    if asked.custom_ops is not None:
        options["custom_ops"] = str(asked.custom_ops.resolve())
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        sample = {spec.name: _noise(Path(folder), i, spec) for i, spec in enumerate(model.inputs)}
        yield _Work(
            subjects=[Subject(name="model", path=str(path), sha256=file_sha256(path), options=options)],
            samples=[sample],
            threads=host.usable_threads()[0],
            inputs="one sample of seeded random values",
        )


def _noise(folder: Path, index: int, spec: TensorSpec) -> str:
    import numpy as np

    dims = [1 if axis == 0 and isinstance(dim, str) else dim for axis, dim in enumerate(spec.shape)]
    shape = [dim for dim in dims if isinstance(dim, int)]
    if len(shape) < len(dims):
        raise ModelError(
            f'input "{spec.name}" has dynamic dims: {spec}', remedy=f"Fix them: --shape {spec.name}=<size>x<size>..."
        )
    generator = np.random.default_rng(_SEED)
    kind = np.dtype(spec.dtype).kind if spec.dtype not in ("unknown", "object", "bfloat16") else "O"
    if kind == "f":
        values = generator.standard_normal(shape).astype(spec.dtype)
    elif kind in "iub":
        values = generator.integers(0, 2, shape).astype(spec.dtype)  # 0 and 1 are valid indices almost everywhere
    else:
        raise ModelError(f'input "{spec.name}" is {spec.dtype}: no random values can be made for it')
    path = folder / f"{index}.npy"
    np.save(path, np.asarray(values), allow_pickle=False)
    return str(path)


def _show(measurement: Mapping[str, Any], title: str, inputs: str, stream: TextIO) -> None:
    """Print the screen, and its warnings again on stderr where they would end in a file with it."""
    from runtime_bench.table import WIDTH, bench_lines, draws_blocks

    width = min(shutil.get_terminal_size().columns, _WIDEST) if stream.isatty() else WIDTH
    notes = [f"inputs: {inputs}"]
    for line in bench_lines(measurement, printable(title), width=width, unicode=draws_blocks(stream), notes=notes):
        click.echo(line, file=stream)
    if stream is sys.stdout and not stream.isatty():
        for reason in _reasons(measurement):
            if reason["severity"] != "info":
                warn(reason["text"])


def _reasons(measurement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(measurement["results"]["stability"]["reasons"])


def _refuse_invalid(measurement: Mapping[str, Any], allow_fallback: bool) -> None:
    """Raise BenchError, after the results were delivered, when they are not to be used.

    That a subject ran on another provider than asked is no reason where that is allowed.
    """
    for reason in _reasons(measurement):
        if reason["severity"] == "invalid" and not (allow_fallback and reason["code"].startswith("provider")):
            raise BenchError(f"the measurement is invalid: {reason['text']}", remedy=reason["advice"])
