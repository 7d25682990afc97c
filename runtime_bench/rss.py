"""Memory of this very process, from ``/proc``. Used inside worker processes, so it is small."""

from __future__ import annotations

from typing import Any, Optional

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


def peak(status_path: str = STATUS) -> Optional[int]:
    """Peak since the reset, in bytes; None where the system does not say."""
    return read_kilobytes(status_path).get("VmHWM")


def anonymous(status_path: str = STATUS) -> Optional[int]:
    """Anonymous memory resident now, in bytes, by the counter ``RssAnon``: quick enough to be polled."""
    try:
        with open(status_path, "rb") as stream:
            _, found, rest = stream.read().partition(b"RssAnon:")
    except OSError:
        return None
    return int(rest.split(None, 1)[0]) * 1024 if found else None


def usage(status_path: str = STATUS, rollup_path: str = ROLLUP) -> dict[str, Any]:
    """Peak since the reset and what is resident now, in bytes.

    Returns ``{"peak", "resident", "anonymous", "file", "pss", "uss", "source", "method", "missing"}``; ``missing``
    has the reason for each value that is None. ``{"reason"}`` where there is no peak. All but the peak are read now.
    ``smaps_rollup`` walks the pages and is exact; the counters of ``status`` may lag by some hundred kilobytes on
    machines with many cores. PSS and USS depend on who else maps the same libraries at this moment.
    """
    status = read_kilobytes(status_path)
    if "VmHWM" not in status:
        return {"reason": "no VmHWM in {}".format(status_path)}
    source = "{} VmHWM".format(status_path)
    rollup = read_kilobytes(rollup_path)
    parts: dict[str, Optional[int]]
    missing: dict[str, str] = {}
    if "Rss" in rollup and "Anonymous" in rollup:
        parts = {
            "resident": rollup["Rss"],
            "anonymous": rollup["Anonymous"],
            "file": rollup["Rss"] - rollup["Anonymous"],
            "pss": rollup.get("Pss"),
            "uss": _private(rollup),
        }
        source += ", parts from {}".format(rollup_path)
    else:
        parts = {
            "resident": status.get("VmRSS"),
            "anonymous": status.get("RssAnon"),
            "file": status.get("RssFile"),
            "pss": None,
            "uss": None,
        }
        source += ", parts VmRSS, RssAnon and RssFile"
        missing = {key: "not in {}".format(status_path) for key, value in parts.items() if value is None}
        missing.update(pss="no {}".format(rollup_path), uss="no {}".format(rollup_path))
    method = (
        "fresh process, peak reset" if not _reset_error else "fresh process, peak since start ({})".format(_reset_error)
    )
    return {"peak": status["VmHWM"], **parts, "source": source, "method": method, "missing": missing}


def _private(rollup: dict[str, int]) -> Optional[int]:
    if "Private_Clean" not in rollup or "Private_Dirty" not in rollup:
        return None
    return rollup["Private_Clean"] + rollup["Private_Dirty"] + rollup.get("Private_Hugetlb", 0)


def own(status_path: str = STATUS, rollup_path: str = ROLLUP) -> Optional[int]:
    """Bytes that only this process can give back: private dirty pages, huge ones, and what was swapped out.

    It is USS without clean file pages: those turn from private to shared and back as other processes come and go,
    by tens of megabytes for a large library. None where the system does not say; ``own_source`` tells from where.
    """
    rollup = read_kilobytes(rollup_path)
    if "Private_Dirty" in rollup:
        return rollup["Private_Dirty"] + rollup.get("Private_Hugetlb", 0) + rollup.get("Swap", 0)
    status = read_kilobytes(status_path)
    return status["RssAnon"] + status.get("VmSwap", 0) if "RssAnon" in status else None


def own_source(status_path: str = STATUS, rollup_path: str = ROLLUP) -> str:
    """Where ``own`` reads."""
    if "Private_Dirty" in read_kilobytes(rollup_path):
        return "{} Private_Dirty + Private_Hugetlb + Swap".format(rollup_path)
    return "{} RssAnon + VmSwap (no {}; the counters may lag)".format(status_path, rollup_path)
