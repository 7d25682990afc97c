"""Run by a Python that has one release of onnxruntime: print its kernels, its signatures, and what it loads, as JSON.

    ask_onnxruntime.py FOLDER

FOLDER holds models of one operator each, ``<anything>.onnx``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ENDLESS = 2**31 - 1


def kernels(state: Any) -> list[list[Any]]:
    """[domain, operator, first, last or None, {constraint: types}] of every kernel of the CPU provider."""
    found = []
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            first, last = kernel.version_range
            types = {name: sorted(set(kinds)) for name, kinds in dict(kernel.type_constraints).items()}
            found.append([kernel.domain, kernel.op_name, first, None if last == ENDLESS else last, types])
    return found


def signatures(state: Any) -> list[list[Any]]:
    """[domain, operator, since, inputs, outputs] with (name, type, whether variadic) of each of them."""

    def side(parameters: Any) -> list[tuple[str, str, bool]]:
        return [(p.name, p.typeStr, "Variadic" in str(p.option)) for p in parameters]

    return [
        [s.domain, s.name, s.since_version, side(s.inputs), side(s.outputs)] for s in state.get_all_operator_schema()
    ]


def loads(runtime: Any, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Names of the models that it makes a session of, and what it says about the others."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    found, refused = [], {}
    for path in sorted(folder.glob("*.onnx")):
        try:
            runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - each release has classes of its own for "no"
            refused[path.stem] = str(error).strip().splitlines()[0]
            continue
        found.append(path.stem)
    return found, refused


if __name__ == "__main__":
    import onnxruntime
    from onnxruntime.capi import _pybind_state

    loaded, refused = loads(onnxruntime, Path(sys.argv[1]))
    answer = {
        "release": onnxruntime.__version__,
        "kernels": kernels(_pybind_state),
        "signatures": signatures(_pybind_state),
        "loads": loaded,
        "refused": refused,
    }
    json.dump(answer, sys.stdout)
