"""The table of OpenVINO: operators and versions that its importer knows, and types that its CPU plugin does not run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from _kernels.models import Case, at, cases

_UNKNOWN = re.compile(r"No conversion rule found for operations: (.*)")
_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
_NEWEST = 28
_AWKWARD = ("object", "bfloat16")
"""Types that the test models hold in arrays which the runtime's Python does not take as what they are."""

_FRAME = ("Check ", "Exception from", "FrontEnd API", "Model wasn't", "While validating", "Conversion failed")
_FLOATS = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "double": TensorProto.DOUBLE}

Ran = tuple[onnx.ModelProto, tuple[np.ndarray, ...], int]
"""A test model, its inputs, and the type of its floats."""


def table() -> dict[str, Any]:
    """Ask for every operator that onnx or onnxruntime defines."""
    from runtime_bench.runners.openvino import import_runtime

    import_runtime()
    import openvino

    tried, runs = _tried(openvino)
    operators: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        for domain, op, since, inputs in _schemas():
            if _known(Path(folder) / "model.onnx", domain, op, since, inputs):
                name = op if domain == "" else f"{domain}:{op}"
                entry = operators.setdefault(name, {"since": []})
                entry["since"] = sorted({*entry["since"], since})
    for name in sorted(runs.keys() - operators.keys()):  # spelled out in some forms, with no rule for it by itself
        model, fed, element = runs[name]
        versions = [since for domain, op, since, _ in _schemas() if domain == "" and op == name]
        core = openvino.Core()
        ran = [since for since in versions if why_not(core, at(model, since, element), fed) is None]
        operators[name] = {"since": ran}
    for (name, kind), results in sorted(tried.items()):
        if name in operators and kind not in _AWKWARD:
            entry = operators[name]
            said = min(filter(None, results), key=lambda text: (len(text), text), default="")
            if not said:
                entry.setdefault("runs", []).append(kind)
            else:
                entry.setdefault("some" if None in results else "refused", {})[kind] = said
    return {
        "schema": "edgeopt.kernels/1",
        "runtime": "openvino",
        "provider": "CPU",
        "releases": [str(openvino.__version__).partition("-")[0]],
        "operators": dict(sorted(operators.items())),
    }


def _schemas() -> Iterator[tuple[str, str, int, int]]:
    """(domain, operator, since, least number of inputs), each once."""
    from onnxruntime.capi import _pybind_state

    found = {
        (s.domain, s.name, s.since_version): s.min_input
        for s in (*onnx.defs.get_all_schemas_with_history(), *_pybind_state.get_all_operator_schema())
        if s.domain in _DOMAINS and s.since_version <= _NEWEST and not s.deprecated
    }
    yield from ((*key, least) for key, least in sorted(found.items()))


def _known(path: Path, domain: str, op: str, since: int, inputs: int) -> bool:
    """Whether the importer has a rule for an operator of a version; what it says about the inputs does not matter."""
    from openvino.frontend import FrontEndManager

    names = [f"x{index}" for index in range(inputs)]
    node = helper.make_node(op, names, ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3, 4]) for name in names],
        [helper.make_empty_tensor_value_info("y")],
    )
    imports = [helper.make_opsetid(domain, since)] + ([helper.make_opsetid("", 20)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    importer = FrontEndManager().load_by_framework("onnx")
    try:
        importer.convert(importer.load(str(path)))
    except Exception as error:  # noqa: BLE001 - its classes share no base
        said = _UNKNOWN.search(str(error))
        return said is None or op not in re.split(r"[\s,.-]+", said.group(1))
    return True


def _tried(openvino: Any) -> tuple[dict[tuple[str, str], list[str | None]], dict[str, Ran]]:
    """By operator and type of the first input: why the plugin does not run each test model, None where it does.

    And of the default domain, by operator, one that it runs in float32, or in its own type.
    """
    found: dict[tuple[str, str], list[str | None]] = {}
    runs: dict[str, Ran] = {}
    core = openvino.Core()
    for case in cases():
        name = case.op if case.domain == "" else f"{case.domain}:{case.op}"
        plain = all(value.type.HasField("tensor_type") for value in case.model.graph.output)
        # The importer takes a sequence only where something reads it; of a branch that makes one no table can tell.
        if not case.inputs or not (plain or _has_body(case)):
            continue
        for kind, model, inputs in _typed(case):
            said = why_not(core, model, inputs)
            found.setdefault((name, kind), []).append(said)
            if said is None and case.domain == "":
                runs.setdefault(name, (model, inputs, _FLOATS.get(kind, TensorProto.FLOAT)))
    return found, runs


def _has_body(case: Case) -> bool:
    return any(attribute.HasField("g") for attribute in case.model.graph.node[0].attribute)


def _typed(case: Case) -> Iterator[tuple[str, onnx.ModelProto, tuple[np.ndarray, ...]]]:
    """The model as it is; where it computes in float32 and has no bodies, also in the other types of floats."""
    opset = next((entry.version for entry in case.model.opset_import if entry.domain == ""), 20)
    if case.inputs[0].dtype != np.float32 or _has_body(case):  # what a body holds is not given another type
        kind = "float" if case.inputs[0].dtype == np.float32 else str(case.inputs[0].dtype)
        yield kind, case.model, case.inputs
        return
    for kind, element in _FLOATS.items():
        dtype = helper.tensor_dtype_to_np_dtype(element)
        inputs = tuple(value.astype(dtype) if value.dtype == np.float32 else value for value in case.inputs)
        yield kind, at(case.model, opset, element), inputs


def why_not(core: Any, model: onnx.ModelProto, inputs: tuple[np.ndarray, ...]) -> str | None:
    """The importer wants some inputs as constants: each model is given as it is, and with all but the first stored."""
    reason = ""
    for stored in (False, True):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        fed = inputs
        if stored:
            names = [value.name for value in changed.graph.input]
            for name, value in list(zip(names, inputs))[1:]:
                changed.graph.initializer.append(numpy_helper.from_array(value, name))
            del changed.graph.input[1:]
            fed = inputs[:1]
        try:
            compiled = core.compile_model(core.read_model(changed.SerializeToString()), "CPU")
            compiled(list(fed))
        except Exception as error:  # noqa: BLE001 - its classes share no base
            reason = _sentence(str(error))
            continue
        return None
    return reason


def _sentence(text: str) -> str:
    """The line that says what is wrong."""
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith(_FRAME) and not line.endswith(("with a message:", "Summary:"))
    ]
    return (told or lines)[0][:120]
