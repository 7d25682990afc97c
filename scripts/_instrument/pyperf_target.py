"""What pyperf measures for ``scripts/instrument agree``: a spin of 2 ms, or a model on inputs NAME=FILE.npy."""

from __future__ import annotations

import time

import pyperf

SPIN_NS = 2_000_000


def spin() -> None:
    end = time.perf_counter_ns() + SPIN_NS
    while time.perf_counter_ns() < end:
        pass


def model(path: str, feeds: list[str]):
    from functools import partial

    import numpy as np
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {name: np.load(file) for name, file in (f.split("=", 1) for f in feeds)})


def keep(command: list[str], options) -> None:
    """pyperf starts its workers anew: hand them the arguments of this program."""
    command += [options.what, *options.feeds]


if __name__ == "__main__":
    runner = pyperf.Runner(add_cmdline_args=keep)
    runner.argparser.add_argument("what")
    runner.argparser.add_argument("feeds", nargs="*")
    options = runner.parse_args()
    runner.bench_func("call", spin if options.what == "spin" else model(options.what, options.feeds))
