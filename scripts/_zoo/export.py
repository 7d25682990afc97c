"""Writes a torch network as .onnx and .pt2 and counts its right answers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from _zoo.packages import FetchError

TORCHSCRIPT_OPSET = 17


def write_network(network: torch.nn.Module, folder: Path, name: str, side: int) -> None:
    """model.onnx by the older exporter, which leaves the graph as written, and model.pt2."""
    torch.manual_seed(0)
    example = torch.randn(1, 3, side, side)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            str(folder / "model.onnx"),
            dynamo=False,
            opset_version=TORCHSCRIPT_OPSET,
            input_names=[name],
            output_names=["logits"],
        )
        torch.export.save(torch.export.export(network, (example,)), folder / "model.pt2")


def figures(folder: Path, name: str, mean: list[float], std: float, centres_right: int) -> str:
    """Size and top-1 of model.onnx; the centre crops must be right as often as is known.

    Raises:
        FetchError: they are not, so network, weights or data differ from what was measured before.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    labels = np.load(folder / "eval-labels.npy")
    shift = np.array(mean, np.float32).reshape(3, 1, 1)
    right = np.array(
        [
            int(session.run(None, {name: ((crop - shift) / np.float32(std))[None]})[0].argmax()) == label
            for crop, label in zip(np.load(folder / "eval.npy", mmap_mode="r"), labels)
        ]
    )
    photos = 20
    if right[:photos].sum() != centres_right:
        raise FetchError(f"{right[:photos].sum()} of {photos} photos are recognized, {centres_right} were before")
    size = (folder / "model.onnx").stat().st_size / 1e6
    return f"{size:.2f} MB, top-1 {right[:photos].sum()}/{photos} photos, {right.sum()}/{len(right)} crops"


def write_source(folder: Path, text: str) -> None:
    """SOURCE.txt: where everything is from and under which terms."""
    photos = (
        "Calibration photos: scikit-image 0.26.0 and scikit-learn 1.9.1, see the notes on their licences there.\n"
        "Evaluation photos: foolbox 3.3.4. Do not redistribute them.\n"
    )
    (folder / "SOURCE.txt").write_text(text + photos, encoding="utf-8")
