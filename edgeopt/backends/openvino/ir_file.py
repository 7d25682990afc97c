"""The two files of an IR with bytes that depend on the network alone, and what can be read from them.

OpenVINO writes what it made up on the way: counters in the names of operators, its own version, the history of each
operator, names of inner tensors. None of it is read by the runtime, so names are made from the network's own, and the
rest goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from edgeopt.backends.openvino.conversion import MARK
from edgeopt.backends.openvino.runtime import import_openvino

OPSETS: Mapping[int, str] = {12: "2023.1.0", 13: "2023.3.0", 14: "2024.0.0", 15: "2024.4.0"}
"""Operator set and the oldest release that has it; files of the first were read with it, older ones were not tried."""

_OPSET = re.compile(r"opset(\d+)")


def weights_of(path: Path) -> Path:
    """The file of constants that belongs to an IR."""
    return path.with_suffix(".bin")


def write(model: Any, path: Path, keys: Sequence[str]) -> None:
    """Write ``path`` and the ``.bin`` beside it, in float32 where the network is.

    Args:
        keys: by number of the node, as ``conversion.convert`` marked the operators.
    """
    import_openvino().save_model(model, str(path), compress_to_fp16=False)
    net = ET.parse(path).getroot()
    net.set("name", "edgeopt")
    _name_operators(net, [friendly(key) for key in keys])
    _drop_tensor_names(net)
    for parent in net.iter():
        for child in [c for c in parent if c.tag == "rt_info"]:
            parent.remove(child)
    for element in net.iter():
        if element.text is not None and not element.text.strip():
            element.text = None
        element.tail = "\n" if element.tag in ("layer", "edge", "layers", "edges", "net") else None
    path.write_bytes(b'<?xml version="1.0"?>\n' + ET.tostring(net, encoding="utf-8") + b"\n")


def friendly(key: str) -> str:
    """How the operators of a node are called in the file: its key, without what separates names in a read-back."""
    return key.replace(",", ";")


def _name_operators(net: ET.Element, keys: Sequence[str]) -> None:
    """The keys for what comes from a node, type and number for the rest; inputs and results keep their names."""
    taken, counts = set(keys), dict[str, int]()
    for layer in net.iter("layer"):
        name, kind = layer.get("name", ""), layer.get("type", "")
        mark = MARK.match(name)
        if mark is not None:
            layer.set("name", keys[int(mark.group(1))] + name[mark.end() :])
        elif kind not in ("Parameter", "Result"):
            fresh = ""
            while not fresh or fresh in taken:
                counts[kind] = counts.get(kind, -1) + 1
                fresh = f"{kind}_{counts[kind]}"
            layer.set("name", fresh)


def _drop_tensor_names(net: ET.Element) -> None:
    """Only inputs and what results read have names that a caller can ask for."""
    layers = {layer.get("id"): layer for layer in net.findall("layers/layer")}
    read = {
        (edge.get("from-layer"), edge.get("from-port"))
        for edge in net.findall("edges/edge")
        if layers[edge.get("to-layer")].get("type") == "Result"
    }
    kept = {id(port) for layer in layers.values() for port in _named(layer, read)}
    for port in net.iter("port"):
        if id(port) not in kept:
            port.attrib.pop("names", None)


def _named(layer: ET.Element, read: set[tuple[str | None, str | None]]) -> Iterator[ET.Element]:
    for port in layer.findall("output/port"):
        if layer.get("type") == "Parameter" or (layer.get("id"), port.get("id")) in read:
            yield port


def opset(path: Path) -> int:
    """The newest operator set that an IR uses."""
    versions = (_OPSET.fullmatch(layer.get("version", "")) for layer in ET.parse(path).getroot().iter("layer"))
    return max((int(found.group(1)) for found in versions if found is not None), default=1)


def oldest(opset_version: int) -> str | None:
    """The oldest release that has an operator set; None where that is not known."""
    return next((release for known, release in OPSETS.items() if opset_version <= known), None)
