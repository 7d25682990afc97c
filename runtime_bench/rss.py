"""Memory of this very process, from ``/proc``. Used inside worker processes, so it is small."""

from __future__ import annotations

from typing import Any

STATUS = "/proc/self/status"
ROLLUP = "/proc/self/smaps_rollup"
CLEAR_REFS = "/proc/self/clear_refs"

_reset_error = "the peak was not reset"


def reset_peak(path: str = CLEAR_REFS) -> None:
    """Set the peak (``VmHWM``) to the memory in use now. A refusal is remembered and shown in ``usage()['method']``."""
    global _reset_error
    try:
        with open(path, "w", encoding="ascii") as stream:
            stream.write("5")
        _reset_error = ""
    except OSError as error:
        _reset_error = "{}: {}".format(path, error.strerror or error)


def read_kilobytes(path: str) -> dict[str, int]:
    """Parse the ``Name:  123 kB`` lines of a file into bytes; a missing file gives an empty dict."""
    fields = {}
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            for line in stream:
                words = line.split()
                if len(words) == 3 and words[2] == "kB" and words[1].isdigit():
                    fields[words[0].rstrip(":")] = int(words[1]) * 1024
    except OSError:
        return {}
    return fields


def usage(status_path: str = STATUS, rollup_path: str = ROLLUP) -> dict[str, Any]:
    """Peak since the reset and what is resident now, in bytes.

    Returns ``{"peak", "anonymous", "file", "source", "method"}``; ``{"reason"}`` where the system does not say. The
    two parts are read now, not at the peak. ``smaps_rollup`` walks the pages and is exact; the counters of ``status``
    may lag by some hundred kilobytes on machines with many cores.
    """
    status = read_kilobytes(status_path)
    if "VmHWM" not in status:
        return {"reason": "no VmHWM in {}".format(status_path)}
    source = "{} VmHWM".format(status_path)
    rollup = read_kilobytes(rollup_path)
    anonymous: Any = None
    file: Any = None
    if "Rss" in rollup and "Anonymous" in rollup:
        anonymous, file = rollup["Anonymous"], rollup["Rss"] - rollup["Anonymous"]
        source += ", parts from {}".format(rollup_path)
    elif "RssAnon" in status and "RssFile" in status:
        anonymous, file = status["RssAnon"], status["RssFile"]
        source += ", parts RssAnon and RssFile"
    method = (
        "fresh process, peak reset" if not _reset_error else "fresh process, peak since start ({})".format(_reset_error)
    )
    return {"peak": status["VmHWM"], "anonymous": anonymous, "file": file, "source": source, "method": method}
