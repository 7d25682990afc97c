#!/usr/bin/env python3
"""SQNR, agreement and size of edgeopt's int8 against onnxruntime's own min-max, on the same samples in one run.

scripts/compare_minmax.py MODEL --calib SET --eval SET [--target NAME]...
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from edgeopt import calibration, loaders, passes, quality
from edgeopt.calibration import DataSet
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, save
from edgeopt.pipeline import Request, build
from edgeopt.quality import Quality
from edgeopt.target import load_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    tool: str
    target: str
    bytes: int
    seen: Quality


def quantize_minmax(model: Model, calib: DataSet, activation: str, out: Path) -> None:
    """onnxruntime's quantize_static as its documentation recommends: pre-processed, Q/DQ, per channel, min-max."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples: Iterator[Mapping[str, np.ndarray]] = calibration.samples(calib, model.inputs)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self.samples, None)

    with tempfile.TemporaryDirectory() as folder:
        plain, prepared = Path(folder) / "plain.onnx", Path(folder) / "prepared.onnx"
        save(model, plain)
        quant_pre_process(str(plain), str(prepared))
        quantize_static(
            str(prepared),
            str(out),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            calibrate_method=CalibrationMethod.MinMax,
            activation_type=QuantType.QUInt8 if activation == "uint8" else QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )


def normalized(model: Model) -> Model:
    """The model after the normalizing rewrites: a peer gets the same help with old opsets and constants."""
    for pass_ in passes.NORMALIZE:
        model = passes.apply(pass_, model).model
    return model


def compare(path: Path, target: str, calib: str | None = None, evaluate: str | None = None) -> list[Row]:
    """Build with both tools and judge both on the evaluation set."""
    model, profile = loaders.load(path), load_target(target)
    if calib is None or evaluate is None:
        found = calibration.embedded_sets(model.origin.sha256())
        assert found is not None, "give --calib and --eval"
        calib_set, eval_set = found
    else:
        calib_set, eval_set = calibration.load_set(calib), calibration.load_set(evaluate)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / "minmax.onnx"
        quantize_minmax(normalized(model), calib_set, profile.int8.activation, theirs)
        bundle = build(
            Request(model=path, target=target, out=Path(folder) / "b", calib=calib, evaluate=evaluate, effort="none")
        )
        ours = bundle.root / bundle.manifest["default_artifact"]
        reference = Interpreter(model)
        for tool, artifact in (("onnxruntime min-max", theirs), ("edgeopt", ours)):
            seen = quality.compare(
                reference.run,
                Interpreter(artifact).run,
                calibration.samples(eval_set, model.inputs),
                labels=calibration.labels(eval_set),
                metric=eval_set.metric,
            )
            rows.append(Row(tool=tool, target=target, bytes=artifact.stat().st_size, seen=seen))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calib")
    parser.add_argument("--eval", dest="evaluate")
    parser.add_argument("--target", action="append", default=[])
    args = parser.parse_args()
    worse = 0
    print("| tool | target | MB | SQNR dB | agreement | ties | metric (float) |\n|---|---|---|---|---|---|---|")
    for target in args.target or ["raspberry-pi-5", "host"]:
        rows = compare(args.model, target, args.calib, args.evaluate)
        for row in rows:
            seen = row.seen
            agreement = "-" if seen.agreement is None else f"{seen.agreement.top1:.2%} | {seen.agreement.ties:.2%}"
            metric = "-" if seen.metric is None else f"{seen.metric.artifact:.2%} ({seen.metric.reference:.2%})"
            print(
                f"| {row.tool} | {row.target} | {row.bytes / 1e6:.3f} | {seen.sqnr_db:.2f} | {agreement} | {metric} |"
            )
        worse += rows[1].seen.sqnr_db < rows[0].seen.sqnr_db
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
