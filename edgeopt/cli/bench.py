"""``edgeopt bench``: latency and memory of a bundle's artifacts, or of one ONNX model, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgeopt.cli._options import (
    PATH,
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
from edgeopt.console import bytes_text, fields, result_table
from edgeopt.errors import BenchError, BundleError, EdgeoptError, ModelError, ToolchainError

if TYPE_CHECKING:
    from edgeopt.model import TensorSpec
    from runtime_bench import Subject

_FAILURES: Mapping[int, type[EdgeoptError]] = {6: ToolchainError, 9: BundleError}
_SEED = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What to measure: subjects, baseline first; inputs as ``.npy`` paths by name; threads; a remark on the inputs."""

    subjects: list[Subject]
    samples: list[dict[str, str]]
    threads: int
    inputs: str


@click.command()
@click.argument("model", type=PATH)
@effort_option
@threads_option
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Limit of the time spent on latency.")
@shape_option
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write the measurement, raw samples included, as JSON.")
@json_option
@quiet_option
def command(
    model: Path,
    effort: str,
    threads: int | None,
    seconds: float | None,
    shapes: Sequence[str],
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a bundle folder, or an ONNX model, on this machine.

    Of a bundle the default artifact is measured against the float one, in alternation and in fresh processes. A
    percentile needs 36 (p90), 72 (p95) or 368 (p99) calls; with fewer it is not given. Memory is three figures: the
    interpreter, what the runtime adds to it, and what the model adds to that.
    """
    import runtime_bench

    fixed = parse_shapes(shapes)
    if output is not None:
        _check_output(output)
    step = steps(quiet)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(_bundle_work(model) if model.is_dir() else _model_work(model, fixed))
        try:
            with step(f"measure {' and '.join(s.name for s in work.subjects)} ({effort})"):
                measurement = runtime_bench.measure(
                    work.subjects, work.samples, effort=effort, threads=threads or work.threads, seconds=seconds
                )
        except runtime_bench.BenchFailure as error:
            kind = ToolchainError if error.code == 6 else BenchError
            raise kind(str(error), remedy="Run `edgeopt doctor` to see what this machine has.") from error
    if output is not None:
        _write(output, measurement)
    _show(measurement, work, sys.stderr if as_json or output is not None else sys.stdout)
    if as_json:
        emit_json(measurement)
    elif output is not None:
        emit_path(output)


@contextlib.contextmanager
def _bundle_work(root: Path) -> Iterator[_Work]:
    from edgeopt.bundle import MEND, read
    from runtime_bench import Subject, VerifyFailure, manifest, sums, verify

    read(root)
    try:
        contract = manifest.parse(manifest.read(str(root)))
        manifest.check_files(contract, sums.check_listed(str(root), sums.DEVICE))
        verify.require_runtime(contract)
    except VerifyFailure as failure:
        kind = _FAILURES.get(failure.code, BundleError)
        raise kind(f"{root}: {failure.message}", remedy=None if kind is ToolchainError else MEND) from failure
    chosen = [artifact for artifact in (contract.fallback, contract.default) if artifact is not None]
    yield _Work(
        subjects=[
            Subject(
                name=artifact.precision,
                path=str(root / artifact.path),
                sha256=artifact.sha256,
                runner=contract.backend,
                options={**contract.options, "provider": contract.provider},
                file=artifact.path,
            )
            for artifact in chosen
        ],
        samples=[
            {name: str(root / path) for name, path in zip(contract.inputs, sample.inputs, strict=True)}
            for sample in contract.samples
        ],
        threads=contract.threads,
        inputs=f"{len(contract.samples)} golden samples of the bundle",
    )


@contextlib.contextmanager
def _model_work(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[_Work]:
    """An ONNX file as it is, with seeded random inputs: latency is measured, not quality."""
    from edgeopt import host, loaders
    from edgeopt.model import file_sha256

    model = loaders.load(path, shapes=shapes)
    if model.origin.format != "onnx":
        raise ModelError(f"{path} is {model.origin.format}: only ONNX models run as they are", remedy="Build it first.")
    from runtime_bench import Subject

    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        sample = {spec.name: _noise(Path(folder), i, spec) for i, spec in enumerate(model.inputs)}
        yield _Work(
            subjects=[Subject(name="model", path=str(path), sha256=file_sha256(path))],
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


def _show(measurement: Mapping[str, Any], work: _Work, stream: TextIO) -> None:
    from runtime_bench import compare
    from runtime_bench.table import ratio_line

    subjects, environment = measurement["subjects"], measurement["environment"]
    runtime = subjects[0]["runtime"]
    machine = environment["board"] or environment["cpu"] or environment["machine"]
    fields(
        [
            ("machine", f"{machine}, {environment['kernel']}"),
            ("runtime", f"{runtime['name']} {runtime['version']}, {runtime['provider']}"),
            ("threads", f"{measurement['threads']} of {environment['cpus']} processors"),
            ("inputs", work.inputs),
        ],
        stream=stream,
    )
    _gap(stream)
    result_table(_LATENCY, [_latency_row(s) for s in subjects], stream=stream)
    _gap(stream)
    result_table(_MEMORY, [_memory_row(s) for s in subjects], stream=stream)
    if len(subjects) == 2:
        _gap(stream)
        line = ratio_line(compare(measurement, subjects[0]["name"], subjects[1]["name"]))
        fields([("latency", line)], stream=stream)
    for entry in measurement["advice"]:
        if entry["severity"] == "warning":
            warn(entry["text"])
        else:
            click.echo(f"note: {entry['text']}", err=True)


_LATENCY = ("latency", "median", "p90", "p95", "p99", "CV", "MAD", "calls")
_MEMORY = ("start, peak memory", "load", "first", "interpreter", "runtime", "model")


def _latency_row(subject: Mapping[str, Any]) -> list[str]:
    from runtime_bench import summarize
    from runtime_bench.table import duration

    figures = summarize(subject)
    cells = [subject["name"], duration(figures["median_ns"])]
    for name in ("p90", "p95", "p99"):
        needs = figures.get(f"{name}_needs")
        cells.append(f"n/a (needs {needs})" if needs else duration(figures[f"{name}_ns"]))
    spread = "n/a" if figures["cv"] is None else f"{figures['cv'] * 100:.1f} %"
    return [*cells, spread, duration(figures["mad_ns"]), str(figures["n"])]


def _memory_row(subject: Mapping[str, Any]) -> list[str]:
    from runtime_bench import summarize
    from runtime_bench.table import duration

    figures = summarize(subject)
    peaks = [subject["memory"][stage] for stage in ("interpreter", "runtime", "model")]
    return [
        subject["name"],
        duration(figures["load_median_ns"]),
        duration(figures["first_median_ns"]),
        *("n/a" if peak["bytes"] is None else bytes_text(peak["bytes"]) for peak in peaks),
    ]


def _gap(stream: TextIO) -> None:
    if stream is not None:
        stream.write("\n")


def _check_output(path: Path) -> None:
    """Refuse before measuring what could not be written, or is somebody's file that is no measurement."""
    remedy = "Give -o another path."
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BenchError(f"{path} cannot be written: it is a folder, or its folder does not exist", remedy=remedy)
    if not os.access(path.absolute().parent, os.W_OK):
        raise BenchError(f"{path} cannot be written: its folder is not writable", remedy=remedy)
    if path.exists() and b'"edgeopt.measurement/' not in path.read_bytes()[:256]:
        raise BenchError(f"{path} exists and is not a measurement; it was left alone", remedy=remedy)


def _write(path: Path, measurement: Mapping[str, Any]) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(measurement, allow_nan=False) + "\n", encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", remedy="Give -o another path.") from error
    finally:
        temporary.unlink(missing_ok=True)
