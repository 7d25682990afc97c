"""What a user asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from edgeopt.target import Budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for.

    Attributes:
        name: of the bundle and its artifacts; the model file's stem when None.
        calib, evaluate: data sets as ``calibration.load_set`` takes them.
        exclude: node names or keys that stay in float.
        shapes: fixed shapes by input name.
        effort: of the measurement: ``quick``, ``standard``, ``release``, or ``none``.
        threads: for the measurement; the target's when None.
        locked: a ``decisions.lock`` or a bundle to replay.
        weights: ``.pth`` or ``.safetensors`` file for a factory ``package.module:function``.
        force_eval: take a network captured in training mode as if it had been exported in eval mode.
        custom_ops: shared library with the custom operators of the model.
        keep_custom_ops: build although operators are unknown; what cannot be run is marked unverified.
        input_type: ``"uint8"`` folds the set's arithmetic into the graph, so that raw pixels are the input.
        input_layout: axes of that input, ``"NHWC"`` or ``"NCHW"``; the model's own when None.
        input_color: order of its channels, ``"rgb"`` or ``"bgr"``; RGB when None.
        fold_limit: bytes that a folded constant may have over what it is made from.
    """

    model: Path
    target: str
    out: Path
    name: str | None = None
    calib: str | None = None
    evaluate: str | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)
    exclude: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    effort: str = "quick"
    seconds: float | None = None
    threads: int | None = None
    locked: Path | None = None
    trust_pickle: bool = False
    weights: Path | None = None
    force_eval: bool = False
    custom_ops: Path | None = None
    keep_custom_ops: bool = False
    input_type: str | None = None
    input_layout: str | None = None
    input_color: str | None = None
    fold_limit: int | None = None
