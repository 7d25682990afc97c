"""The contract of a set: what whoever feeds the device must do to raw data, input by input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeopt.calibration.types import Audio, DataSet, Images, Tokens, Transform

Stated = dict[str, object]


def contract(dataset: DataSet) -> dict[str, Stated]:
    """For every input that the description says something about, what it says, as plain JSON values."""
    found: dict[str, Stated] = {}
    for source in dataset.sources:
        found[source.name] = {
            **_arithmetic(source.transform),
            **(_pictures(dataset.images) if dataset.images is not None else {}),
            **(_sound(dataset.audio) if dataset.audio is not None else {}),
            **(_tokens(dataset.tokens, source.name) if dataset.tokens is not None else {}),
        }
    found |= {constant.name: {"value": constant.value} for constant in dataset.constants}
    for carried in dataset.carried:
        found[carried.name] = {"from": f"output {carried.output} of the call before; zero at the start"}
    return {name: stated for name, stated in found.items() if stated}


def _arithmetic(transform: Transform) -> Stated:
    found: Stated = {}
    if transform.stated:
        found["formula"] = "(raw * scale - mean) / std"
        found["scale"] = transform.scale
        found["mean"] = list(transform.mean or (0.0,))
        found["std"] = list(transform.std or (1.0,))
    if transform.layout:
        found["layout"] = transform.layout
    if transform.color:
        found["color"] = transform.color
    return found


def _pictures(images: Images) -> Stated:
    sizes = {name: getattr(images, name) for name in ("resize", "size", "crop")}
    found: Stated = {name: list(v) if isinstance(v, tuple) else v for name, v in sizes.items() if v is not None}
    return found | {"interpolation": images.interpolation}


def _sound(audio: Audio) -> Stated:
    found: Stated = {"rate": audio.rate, "channels": audio.channels, "axes": audio.axes}
    if not audio.integer:
        found["raw"] = "PCM / 2**(bits - 1), floats as they are"
    if audio.window:
        found |= {"window": audio.window, "hop": audio.hop}
    return found | ({"zeros before the start": audio.before} if audio.before else {})


def _tokens(tokens: Tokens, name: str) -> Stated:
    entry = next(e for e in tokens.inputs if e.name == name)
    found: Stated = {"values": "1 for every number, 0 for padding"} if entry.mask else {"pad": entry.pad}
    sizes = {"length": tokens.length, "multiple": tokens.multiple}
    return found | {key: size for key, size in sizes.items() if size}
