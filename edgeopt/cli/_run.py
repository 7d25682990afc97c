"""From a command to an exit code: one line on stderr for every failure, and no traceback without ``--debug``."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from types import FrameType

import click

from edgeopt.cli._group import DEBUG
from edgeopt.console import printable
from edgeopt.errors import EdgeoptError, did_you_mean

INTERNAL, USAGE, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141
_PATIENCE = 5.0
"""Seconds for which a second signal cannot disturb the cleanup that the first one started."""


class _Stopped(BaseException):
    """SIGTERM or SIGHUP arrived; no ``except Exception`` on the way may hold it back from the cleanups."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_arrived: list[int] = []
"""Signals so far: an import or a library that swallows the exception turns it into an error of its own."""


def stop_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into exceptions, so that temporary files and child processes go away."""
    first: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        _arrived.append(number)
        if first is not None and time.monotonic() - first < _PATIENCE:
            return
        first = time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else _Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored from outside, as by nohup: stays so
            signal.signal(number, stop)


def run(group: click.Group, args: Sequence[str]) -> int:
    """Run ``group`` with ``args`` and return the exit code. Every message is on stderr."""
    _tolerate_any_text()
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime sends events and keeps an identifier otherwise
    if "_EDGEOPT_COMPLETE" in os.environ:  # set by the shell's completion script
        group.main(list(args), prog_name="edgeopt")
    try:
        code = _outcome(group, args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_stdout()
        return CLOSED_PIPE
    except OSError as error:  # the result did not reach stdout: a full disk
        _drop_stdout()
        _say(f"error: the result could not be written to standard output: {error.strerror}")
        return INTERNAL


def _outcome(group: click.Group, args: Sequence[str]) -> int:
    context: click.Context | None = None

    def debug() -> bool:
        given = context is not None and context.meta.get(DEBUG, False)
        return bool(given) or os.environ.get("EDGEOPT_DEBUG", "") not in ("", "0")

    try:
        context = group.make_context("edgeopt", list(args))
        with context:
            group.invoke(context)
        return 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        return _usage(error)
    except EdgeoptError as error:
        if debug():
            _say(traceback.format_exc().rstrip())
        if _arrived:
            return _stopped(_arrived[0])
        _say(f"error: {error.message}" + (f"\n{error.remedy}" if error.remedy else ""))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _stopped(signal.SIGINT)
    except _Stopped as stopped:
        return _stopped(stopped.number)
    except Exception as error:  # the last resort: a sentence instead of a traceback
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            raise
        if _arrived:
            return _stopped(_arrived[0])
        return _unexpected(error, debug=debug())


def _stopped(number: int) -> int:
    if number == signal.SIGINT:
        _say("interrupted; nothing was written")
        return INTERRUPTED
    _say(f"stopped by {signal.Signals(number).name}; nothing was written")
    return 128 + number


def _usage(error: click.UsageError) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 has it
        _say(error.ctx.get_help() if error.ctx is not None else "")
        return USAGE
    _say(f"error: {_usage_text(error)}")
    if error.ctx is not None:
        _say(f'Try "{error.ctx.command_path} --help".')
    return USAGE


def _usage_text(error: click.UsageError) -> str:
    """Click's sentence; for an unknown option the nearest one, where Click lists all that share some letters."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = [name for param in error.ctx.command.get_params(error.ctx) for name in param.opts]
        return f'No such option "{error.option_name}".{did_you_mean(error.option_name, known)}'
    return error.format_message()


def _unexpected(error: Exception, *, debug: bool) -> int:
    if debug:
        _say(traceback.format_exc().rstrip())
    if isinstance(error, OSError) and error.strerror:
        _say(f"error: {error.strerror}" + (f": {error.filename}" if error.filename is not None else ""))
        if error.errno == errno.ENOSPC:
            import tempfile

            _say(f"Free some space there, or in the folder for temporary files, {tempfile.gettempdir()} (TMPDIR).")
    else:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        _say(f"internal error: {text}" + ("" if debug else "; run again with --debug for the traceback"))
    return INTERNAL


def _say(text: str) -> None:
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=True)


def _reader_is_gone() -> bool:
    """Whether whoever read stdout or stderr closed it; a broken pipe may also be that of a child process."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                poll.register(stream.fileno(), 0)
            except (OSError, ValueError):  # a stream of a test has no descriptor
                continue
    return bool(poll.poll(0))


def _drop_stdout() -> None:
    """Point stdout nowhere, so that the interpreter's last flush has nothing to complain about."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _tolerate_any_text() -> None:
    """Let stdout and stderr take any text: bytes of odd file names as they are, the rest escaped."""
    codecs.register_error("edgeopt", _odd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="edgeopt")


def _odd(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    char, end = error.object[error.start], error.start + 1
    if "\udc80" <= char <= "\udcff":
        return bytes([ord(char) - 0xDC00]), end
    return char.encode("ascii", "backslashreplace").decode("ascii"), end
