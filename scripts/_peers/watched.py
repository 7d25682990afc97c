"""Runs a command and tells its seconds and the peak memory of its whole process tree. Linux only, nothing installed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

INTERVAL_SECONDS = 0.02
PROC = Path("/proc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """A command that has ended.

    Attributes:
        seconds: wall clock.
        peak_bytes: largest sum of resident set sizes of the process and its descendants that was seen. Pages that
            several processes map count once for each.
    """

    code: int
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str


def run(
    command: Sequence[str],
    *,
    folder: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
    limit_bytes: int | None = None,
) -> Watched:
    """Run to the end, in ``cwd`` or else in ``folder``; output goes through files in ``folder``: no pipe fills up.

    After ``timeout`` seconds, and above ``limit_bytes`` of memory, the command and its children are killed; then
    ``code`` is -9 and ``stderr`` ends with why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started, peak = time.monotonic(), 0
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=cwd or folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            while child.poll() is None:
                peak = max(peak, tree_bytes(child.pid))
                reason = None
                if timeout is not None and time.monotonic() - started > timeout:
                    reason = f"after {timeout:g} s"
                elif limit_bytes is not None and peak > limit_bytes:
                    reason = f"when it held {peak / 1e9:.1f} GB"
                if reason is not None:
                    _kill(child)
                    stderr.write(f"\nerror: killed {reason}\n".encode())
                    break
                time.sleep(INTERVAL_SECONDS)
        except BaseException:  # an interrupt of this process does not reach a child in a session of its own
            _kill(child)
            raise
        seconds = time.monotonic() - started
    read = [file.read_text(encoding="utf-8", errors="replace") for file in (out, err)]
    return Watched(code=child.returncode, seconds=seconds, peak_bytes=peak, stdout=read[0], stderr=read[1])


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tree_bytes(root: int) -> int:
    """Resident bytes of a process and its descendants now.

    A child that still runs its parent's image, between fork and exec, maps its parent's pages: not counted again.
    """
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                parents.setdefault(parent, []).append(int(entry.name))
    total, waiting = _resident(root), [root]
    while waiting:
        above = waiting.pop()
        image = _command(above)
        for pid in parents.get(above, ()):
            waiting.append(pid)
            if _command(pid) != image:
                total += _resident(pid)
    return total


def _parent(entry: Path) -> int | None:
    text = _read(entry / "stat")
    return int(text.rpartition(")")[2].split()[1]) if ")" in text else None


def _resident(pid: int) -> int:
    fields = _read(PROC / str(pid) / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _command(pid: int) -> str:
    return _read(PROC / str(pid) / "cmdline")


def _read(file: Path) -> str:
    """Empty where the process has ended."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
