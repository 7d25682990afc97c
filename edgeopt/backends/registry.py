"""The backends that this version has."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from edgeopt.backends import onnxruntime, openvino

BACKENDS: Mapping[str, ModuleType] = {module.NAME: module for module in (onnxruntime, openvino)}
"""The whole registry, by name."""

INSTALL: Mapping[str, str] = {
    onnxruntime.NAME: "pip install onnxruntime",
    openvino.NAME: 'pip install "edgeopt[openvino]"',
}
"""What makes a backend build here."""
