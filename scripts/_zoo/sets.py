"""What the recipes share: descriptions of sets, how to build, an onnxruntime session, a check of a known figure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime

from _zoo.packages import FetchError

BUILD = "build.txt"
"""Beside every network: one command line of ``edgeopt build`` a line, without target and destination."""


def describe(
    path: Path,
    *,
    name: str,
    description: str,
    inputs: Mapping[str, Mapping[str, object]],
    kind: str = "arrays",
    settings: Mapping[str, object] | None = None,
) -> None:
    """Write a description; values are texts, numbers, flags, lists of them, and tables."""
    head = {"schema": "edgeopt.set/1", "name": name, "description": description, "kind": kind, **(settings or {})}
    lines = [f"{key} = {_toml(value)}" for key, value in head.items()]
    for input_name, table in inputs.items():
        lines += ["", f"[inputs.{json.dumps(input_name)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    """JSON and TOML agree on texts, numbers, flags and lists; a dict becomes an inline table."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)


def write_module(folder: Path, module: ModuleType) -> None:
    """Put a module of this package beside the descriptions or commands that name it."""
    source = Path(module.__file__ or "")
    shutil.copyfile(source, folder / source.name)


def write_build(folder: Path, *commands: Sequence[str]) -> None:
    """``build.txt``: for each command the model (or factory) and its options; both sets are added."""
    sets = "--calib calib.toml --eval eval.toml"
    lines = [" ".join(["edgeopt build", command[0], sets, *command[1:]]) for command in commands]
    (folder / BUILD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_source(folder: Path, text: str) -> None:
    """``SOURCE.txt``: where everything is from and under which terms."""
    (folder / "SOURCE.txt").write_text(text, encoding="utf-8")


def session(model: Path | bytes) -> onnxruntime.InferenceSession:
    """One thread, no chatter."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def expect(what: str, found: float, known: float, within: float) -> float:
    """``found``, if it is what was measured before.

    Raises:
        FetchError: it is not, so network, data or runtime differ.
    """
    if not abs(found - known) <= within:
        raise FetchError(f"{what} is {found:.4f}, {known:.4f} was measured before")
    return found


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: Mann and Whitney's U over all pairs, ties count half. Both ``[n]``."""
    low, high = np.sort(scores[~positive]), scores[positive]
    wins = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(wins.sum() / 2 / (len(low) * len(high)))


def megabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.2f} MB"
