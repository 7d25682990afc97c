"""Exit codes, messages and streams of the command line (C01)."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from edgeopt import errors
from edgeopt.cli import _run, group
from edgeopt.cli._group import LazyGroup, SuggestingGroup
from edgeopt.cli._run import run
from tests.conftest import Run, clean_environment

CODES = {
    errors.EdgeoptError: 1,
    errors.ModelError: 3,
    errors.TargetError: 4,
    errors.CalibrationError: 4,
    errors.BudgetError: 5,
    errors.ToolchainError: 6,
    errors.QualityError: 7,
    errors.BenchError: 8,
    errors.BundleError: 9,
    errors.RegressionError: 10,
}


def a_group(body: Callable[[], None]) -> click.Group:
    """A command line with one command, ``go``, that runs ``body``."""
    made = SuggestingGroup("edgeopt")
    made.add_command(click.Command("go", callback=body))
    return made


def failing(error: BaseException) -> click.Group:
    def body() -> None:
        raise error

    return a_group(body)


def test_every_error_class_is_in_the_table() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdgeoptError)}
    assert classes == set(CODES)


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda x: getattr(x, "__name__", str(x)))
def test_an_error_exits_with_the_code_of_its_class(
    kind: type[errors.EdgeoptError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(kind("m.onnx: no good", remedy="Do this.")), ["go"]) == code
    said = capsys.readouterr()
    assert said.err == "error: m.onnx: no good\nDo this.\n"
    assert said.out == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
        (ZeroDivisionError("x"), 1, "internal error: ZeroDivisionError: x; run again with --debug for the traceback\n"),
        (AssertionError(), 1, "internal error: AssertionError; run again with --debug for the traceback\n"),
        (PermissionError(13, "Permission denied", "a b"), 1, "error: Permission denied: a b\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, "error: Broken pipe\n"),  # not of our streams: it is said
    ],
)
def test_other_errors(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(error), ["go"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("args", [["--debug", "go"], ["go", "--debug"]])
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), errors.ModelError("bad")])
def test_debug_shows_the_traceback(args: list[str], error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(failing(error), args)
    said = capsys.readouterr().err
    assert code == getattr(error, "exit_code", 1)
    assert said.startswith("Traceback (most recent call last)")
    assert "--debug for the traceback" not in said


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_debug_from_the_environment(
    value: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEOPT_DEBUG", value)
    assert run(failing(errors.ModelError("bad")), ["go"]) == 3
    assert ("Traceback" in capsys.readouterr().err) is shown


def test_control_characters_of_a_hostile_name_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(errors.ModelError("tensor \x1b[2J\r\u202ename")), ["go"]) == 3
    assert capsys.readouterr().err == "error: tensor \\x1b[2J\\r\\u202ename\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["biuld"], 'error: No such command "biuld". Did you mean "build"?\nTry "edgeopt --help".\n'),
        (["qqqqqq"], 'error: No such command "qqqqqq". Commands: build, plan,'),
        (["targets", "lst"], 'error: No such command "lst". Did you mean "list"?\nTry "edgeopt targets --help".\n'),
        (["targets", "list", "--jsn"], "--json"),
        (["--versoin"], "--version"),
        (["targets", "show"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_was_meant(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(group, args) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert streams.err.startswith("error: ")
    assert streams.out == ""


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--help"], ["-h"], ["--version"], ["targets", "-h"]):
        assert run(group, args) == 0
    assert "Usage: edgeopt" in capsys.readouterr().out


def test_every_command_of_the_table_loads_and_is_named_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(group, LazyGroup)
    context = click.Context(group, info_name="edgeopt")
    for name in group.list_commands(context):
        assert group.get_command(context, name) is not None, name
    run(group, ["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in group.table)


def test_help_imports_nothing_heavy() -> None:
    heavy = [
        "torch",
        "onnxruntime",
        "onnx",
        "onnx_ir",
        "onnxscript",
        "numpy",
        "jinja2",
        "rich",
        "psutil",
        "PIL",
        "edgeopt.pipeline",
    ]
    script = (
        "import sys, edgeopt.cli\n"
        "from edgeopt.cli._run import run\n"
        "assert run(edgeopt.cli.group, ['--help']) == 0\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=clean_environment(), check=True)
    assert done.stderr.decode().strip() == "[]"


def script_with(body: str) -> list[str]:
    """A program that runs ``go`` with this body through the real ``main``."""
    program = (
        "import os, signal, sys, time, click, edgeopt.cli as cli\n"
        "from edgeopt.cli._group import SuggestingGroup\n"
        "def body():\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n"
        "cli.group = SuggestingGroup('edgeopt')\n"
        "cli.group.add_command(click.Command('go', callback=body))\n"
        "sys.argv = ['edgeopt', 'go']\n"
        "cli.main()\n"
    )
    return [sys.executable, "-c", program]


def test_a_closed_pipe_is_quiet_and_not_a_success() -> None:
    """C01: the output is piped to a reader that goes away."""
    reader, writer = os.pipe()
    os.close(reader)
    program = script_with("click.echo('x' * 100_000)")
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, env=clean_environment(), check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_closed_pipe_with_buffered_output(edgeopt: Run) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = edgeopt("targets", "list", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_that_cannot_be_written_is_an_error(edgeopt: Run) -> None:
    with Path("/dev/full").open("wb") as full:
        done = edgeopt("targets", "list", "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    said = b"error: the result could not be written to standard output: No space left on device\n"
    assert done.stderr.startswith(said)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, b"interrupted; nothing was written\n"),
        (signal.SIGTERM, 143, b"stopped by SIGTERM; nothing was written\n"),
        (signal.SIGHUP, 129, b"stopped by SIGHUP; nothing was written\n"),
    ],
)
def test_a_signal_runs_the_cleanups_even_when_it_comes_twice(
    number: signal.Signals, code: int, said: bytes, tmp_path: Path
) -> None:
    """C02: the second signal, sent during the cleanup, does not cut it short."""
    program = script_with(f"""
        leftover = {str(tmp_path / "leftover")!r}
        open(leftover, 'w').close()
        try:
            try:
                print('ready', flush=True)
                time.sleep(60)
            except Exception:
                pass
        finally:
            os.kill(os.getpid(), {int(number)})
            time.sleep(0.01)
            os.unlink(leftover)
    """)
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(timeout=60) == code
        assert child.stderr.read() == said
    assert not (tmp_path / "leftover").exists()


def test_a_signal_that_was_ignored_from_outside_stays_ignored() -> None:
    program = script_with("os.kill(os.getpid(), signal.SIGHUP); print('went on')")
    program[2] = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + program[2]
    done = subprocess.run(program, capture_output=True, env=clean_environment(), check=False)
    assert (done.returncode, done.stdout) == (0, b"went on\n")


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C.UTF-8"}])
def test_any_text_can_be_printed_in_any_locale(locale: dict[str, str], edgeopt: Run) -> None:
    """C03: the message names the file, whatever stderr can carry."""
    done = edgeopt("targets", "check", "mödel dir/模型.toml", env=locale)
    assert done.returncode == 4
    assert b".toml: cannot be read" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_name_that_is_not_utf8_comes_out_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run(a_group(lambda: click.echo(os.fsdecode(b"caf\xe9/\xc3\xa9"))), ["go"]) == 0
    assert stream.buffer.getvalue() == b"caf\xe9/\xc3\xa9\n"  # type: ignore[attr-defined]


def test_python_dash_m_is_the_same_command(edgeopt: Run) -> None:
    done = edgeopt("--version")
    assert (done.returncode, done.stdout) == (0, b"edgeopt, version 0.1.0\n")


@pytest.mark.parametrize("error", [errors.EdgeoptError("onnxruntime does not import"), RuntimeError("half imported")])
def test_an_interrupt_wins_over_the_error_that_it_became(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def swallows() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr(_run, "_arrived", [])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        _run.stop_signals()
        code = run(click.Group("edgeopt", commands={"x": swallows}), ["x"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, capsys.readouterr().err) == (130, "interrupted; nothing was written\n")
