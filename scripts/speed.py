#!/usr/bin/env python3
"""Print how long edgeopt takes and how much memory its whole process tree needs.

    scripts/speed.py MODEL --target NAME --eval SET --calib SET [--calib SET ...]

One build for each calibration set. Memory is the peak over time of the sum of resident set sizes of the process and
all its children, read every 20 ms; shared pages count once for every process that maps them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil


def tree_rss(process: psutil.Process) -> int:
    """Sum of resident set sizes of a process and its descendants, in bytes.

    A child that has not yet replaced its parent's image runs in the parent's own memory: not counted again.
    """
    total, image = process.memory_info().rss, process.cmdline()
    for one in process.children(recursive=True):
        try:
            total += one.memory_info().rss if one.cmdline() != image else 0
        except psutil.NoSuchProcess:
            continue
    return total


def build(command: list[str]) -> tuple[float, int]:
    """Seconds and peak bytes of one build."""
    started, peak = time.monotonic(), 0
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watched = psutil.Process(child.pid)
    while child.poll() is None:
        try:
            peak = max(peak, tree_rss(watched))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    if child.wait() != 0:
        sys.exit(f"the build failed with exit code {child.returncode}")
    return time.monotonic() - started, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--target", default="raspberry-pi-5")
    parser.add_argument("--eval", dest="evaluate", required=True)
    parser.add_argument("--calib", action="append", required=True)
    args = parser.parse_args()
    edgeopt = [sys.executable, "-m", "edgeopt"]
    times = []
    for _ in range(7):
        started = time.monotonic()
        subprocess.run([*edgeopt, "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - started)
    print(f"edgeopt --help          {statistics.median(times):.2f} s (median of {len(times)})")
    first = None
    for calib in args.calib:
        with tempfile.TemporaryDirectory() as folder:
            command = [*edgeopt, "build", str(args.model), "-t", args.target, "--calib", calib, "--eval", args.evaluate]
            seconds, peak = build([*command, "--quiet", "-o", f"{folder}/bundle"])
        first = first or peak
        name = Path(calib).name
        print(
            f"build, {name:<16} {seconds:5.1f} s, peak {peak / 1e6:.0f} MB over the process tree ({peak / first:.3f})"
        )


if __name__ == "__main__":
    main()
