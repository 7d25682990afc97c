"""The command line of ``bench.pyz``: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from runtime_bench import manifest, profile, protocol, sums, table, verify
from runtime_bench.archive import pyz_path
from runtime_bench.errors import BenchFailure, VerifyFailure

WIDEST = 120
"""Characters that a line may have on a wide terminal."""

EXIT_CODES = """\
exit codes: 0 fine, 1 the result cannot be written, 2 wrong use, 6 runtime or provider missing or too old, 7 the
golden outputs are not met, 8 the measurement failed or is invalid, 9 the bundle is damaged, or bound to another kind of
processor or another release, 130 interrupted, 143 terminated
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the whole usage."""
        sys.stderr.write("{}: {} (--help shows the options)\n".format(self.prog, message))
        sys.exit(2)


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    options = parser.parse_args(list(arguments))
    _check(parser, options)
    signal.signal(signal.SIGTERM, _terminate)
    command = {"bench": _bench, "verify": _verify, "probe": _probe}[options.command]
    try:
        return command(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains once more when it flushes
        return 1
    except (BenchFailure, VerifyFailure) as error:
        return _fail(parser.prog, str(error), error.code)
    except OSError as error:
        return _fail(parser.prog, str(error), 1)


def _parser() -> argparse.ArgumentParser:
    archive = pyz_path()
    parser = _Parser(
        prog=os.path.basename(archive) if archive else "runtime_bench",
        description="Measure a bundle's models on this machine, or verify that they compute what they should.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("bench", "verify", "probe"),
        default="bench",
        help="bench (the default) measures latency and memory; verify checks digests and golden outputs; probe prints "
        "a device profile of this machine for edgeopt build --target FILE",
    )
    parser.add_argument("--bundle", metavar="DIR", help="the bundle folder (default: the folder of this program)")
    parser.add_argument("--json", metavar="PATH", help="write the result there; - is stdout, without the table")
    parser.add_argument(
        "--effort",
        choices=tuple(protocol.EFFORTS),
        help="3, 10 or 20 processes a model (default: quick)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the runtime (default: the bundle's)")
    parser.add_argument("--seconds", type=float, metavar="S", help="limit of the time spent on measuring")
    parser.add_argument(
        "--fps",
        type=float,
        metavar="F",
        help="call that often a second, timed from when each call was due (default: back to back)",
    )
    parser.add_argument(
        "--custom-ops",
        metavar="LIBRARY",
        help="shared library with the model's own operators, built for this machine; its code runs",
    )
    parser.add_argument("--no-pin", action="store_true", help="do not keep the processes on fixed CPUs")
    parser.add_argument(
        "--allow-fallback",
        action="store_true",
        help="measure even where the runtime runs nodes on another provider than the bundle's",
    )
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse before any work what would fail after it, or would damage the bundle."""
    for name in ("effort", "threads", "seconds", "fps", "no_pin", "allow_fallback"):
        if options.command != "bench" and getattr(options, name) not in (None, False):
            parser.error("--{} means nothing to {}".format(name.replace("_", "-"), options.command))
    if options.command == "probe" and options.json is not None:
        parser.error("--json means nothing to probe, which prints TOML")
    if options.threads is not None and options.threads < 1:
        parser.error("--threads must be at least 1")
    if options.seconds is not None and not options.seconds > 0:
        parser.error("--seconds must be above 0")
    if options.fps is not None and not protocol.MIN_FPS <= options.fps <= protocol.MAX_FPS:
        parser.error("--fps must be from {:g} to {:.0f}".format(protocol.MIN_FPS, protocol.MAX_FPS))
    if options.custom_ops is not None and not os.path.isfile(options.custom_ops):
        parser.error("--custom-ops {} is no file".format(options.custom_ops))
    if options.bundle is None:
        archive = pyz_path()
        options.bundle = os.path.dirname(archive) if archive else os.getcwd()
    elif not os.path.isdir(options.bundle):
        parser.error("--bundle {} is no folder".format(options.bundle))
    if options.json not in (None, "-"):
        reason = _unwritable(options.json, options.bundle)
        if reason:
            parser.error("cannot write --json {}: {}".format(options.json, reason))


def _unwritable(path: str, root: str) -> str:
    """Why a result must not or cannot be written there; empty if it can."""
    real, root = os.path.realpath(path), os.path.realpath(root)
    folder = os.path.dirname(real)
    if os.path.isdir(real):
        return "it is a folder"
    if os.path.exists(real) and not os.path.isfile(real):
        return "it is no plain file, and - stands for stdout"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return "its folder is missing or read-only"
    inside = os.path.relpath(real, root)
    if inside.startswith(os.pardir + os.sep):
        return ""
    if os.sep in inside or not inside.endswith(".json"):
        return "it lies in the bundle, where only .json files at the top are taken for results"
    return "it is a file of the bundle" if os.path.exists(real) and not sums.is_result(root, inside) else ""


def _bench(options: argparse.Namespace) -> int:
    root = os.path.abspath(options.bundle)
    raw = manifest.read(root)
    contract = verify.with_library(manifest.parse(raw), options.custom_ops)
    manifest.check_files(contract, sums.check_listed(root, sums.DEVICE))
    for warning in verify.machine_warnings(contract):
        sys.stderr.write("warning: {}\n".format(warning))
    verify.require_runtime(contract, options.allow_fallback)
    chosen = [artifact for artifact in (contract.fallback, contract.default) if artifact is not None]
    same = len({artifact.precision for artifact in chosen}) < len(chosen)
    subjects = [
        protocol.Subject(
            name=artifact.role if same else artifact.precision,
            path=os.path.join(root, *artifact.path.split("/")),
            sha256=artifact.sha256,
            runner=contract.backend,
            options={**contract.options_of(artifact), "provider": contract.provider},
            file=artifact.path,
            precision=artifact.precision,
            data=None if artifact.data is None else os.path.join(root, *artifact.data.path.split("/")),
        )
        for artifact in chosen
    ]
    samples = [
        {name: os.path.join(root, *path.split("/")) for name, path in zip(contract.inputs, sample.inputs)}
        for sample in contract.samples
    ]
    with_progress = _Progress()
    try:
        measurement = protocol.measure(
            subjects,
            samples,
            effort=options.effort or "quick",
            threads=options.threads or contract.threads,
            seconds=options.seconds,
            progress=with_progress,
            fps=options.fps,
            pin=not options.no_pin,
            allow_fallback=options.allow_fallback,
            isa=verify.target_isa(contract),
        )
    finally:
        with_progress.clear()
    _deliver(measurement, options.json, lambda: _screen(measurement, raw))
    allowed = ("provider_wrong",) if options.allow_fallback else ()
    reasons = measurement["results"]["stability"]["reasons"]
    invalid = [r["text"] for r in reasons if r["severity"] == "invalid" and r["code"] not in allowed]
    if invalid:
        raise BenchFailure("the measurement is invalid: {}".format(invalid[0]))
    return 0


def _screen(measurement: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    width = min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else table.WIDTH
    return table.bench_lines(measurement, _title(raw), width=width, unicode=table.draws_blocks(sys.stdout))


def _probe(options: argparse.Namespace) -> int:
    sys.stdout.write(profile.profile())
    return 0


def _verify(options: argparse.Namespace) -> int:
    with_progress = _Progress()
    try:
        result = verify.verify_bundle(options.bundle, with_progress, custom_ops=options.custom_ops)
    finally:
        with_progress.clear()
    title = _title(manifest.read(os.path.abspath(options.bundle)))
    _deliver(result, options.json, lambda: table.verify_lines(result, title))
    return 0 if result["ok"] else 7


def _title(raw: Mapping[str, Any]) -> str:
    target = raw.get("target")
    name = target.get("name") if isinstance(target, dict) else None
    return "{} for {}".format(sums.shown(raw.get("name")), sums.shown(name))


def _deliver(result: Mapping[str, Any], path: Optional[str], lines: Callable[[], list[str]]) -> None:
    """Write the JSON (whole or not at all), print the text."""
    if path == "-":
        print(json.dumps(result), flush=True)
        return
    if path is not None:
        real = os.path.realpath(path)  # a link stays one
        temporary = "{}.{}.tmp".format(real, os.getpid())
        try:
            with open(temporary, "w", encoding="ascii") as stream:
                stream.write(json.dumps(result) + "\n")
            os.replace(temporary, real)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
    print("\n".join(lines()), flush=True)
    if path is not None:
        sys.stderr.write("written: {}\n".format(path))


class _Progress:
    """One line on stderr that is rewritten; nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r" + text.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0


def _terminate(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _fail(program: str, message: str, code: int) -> int:
    sys.stderr.write("{}: {}\n".format(program, message))
    return code
