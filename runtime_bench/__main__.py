"""Entry of ``python3 bench.pyz`` and ``python3 -m runtime_bench``, and of the worker processes that these start."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or one worker job when started with ``--worker``."""
    if sys.argv[1:2] == ["--worker"]:
        from runtime_bench import rss

        rss.reset_peak()  # before any other import: what those need belongs to the measured peak
        from runtime_bench.worker import main as work

        return work()
    try:
        from runtime_bench.cli import main as command

        return command(sys.argv[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
