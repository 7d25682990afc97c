"""Write a graph as OpenVINO's IR: a text of operators and a file of constants beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edgeopt.backends import Artifact, DataFile
from edgeopt.backends.openvino import ir_file
from edgeopt.backends.openvino.conversion import convert
from edgeopt.backends.openvino.runtime import import_openvino, port_name, version
from edgeopt.errors import ModelError, ToolchainError
from edgeopt.model import Model, file_sha256, node_key
from edgeopt.target import Target
from edgeopt.target.parse import parts
from runtime_bench.runners.openvino import sentence

FORMAT = "openvino-ir"


def lower(model: Model, target: Target, out: Path, *, precision: str) -> Artifact:
    """Write the graph for the target: deterministic bytes in two files, ``.xml`` and ``.bin`` of ``out``'s name.

    Raises:
        ModelError: OpenVINO does not take the model, or gives it another signature.
        ToolchainError: it needs a newer OpenVINO than the target has, or operators made for onnxruntime.
    """
    path = out.with_suffix(".xml")
    files = (path, ir_file.weights_of(path))
    try:
        ir_file.write(convert(model), path, [node_key(node) for node in model.nodes()])
        _check_signature(model, path)
        _require(path, target)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise
    data = DataFile(path=files[1], bytes=files[1].stat().st_size, sha256=file_sha256(files[1]))
    return Artifact(
        path=path,
        format=FORMAT,
        precision=precision,
        bytes=path.stat().st_size + data.bytes,
        sha256=file_sha256(path),
        toolchain={"openvino": version()},
        data=data,
        runner="openvino",
    )


def baseline(model: Model, target: Target, out: Path) -> Artifact | None:
    """The model as loaded, written as ``lower`` does; it is measured and never shipped.

    None where OpenVINO does not take it: the rewrites may have removed what it does not know.
    """
    try:
        return lower(model, dataclasses.replace(target, runtime={}), out, precision="original")
    except ModelError:
        return None


def minimum(*artifacts: Path) -> dict[str, object]:
    """The oldest runtime that reads all artifacts (``openvino``: the one here where no older one is known)."""
    newest = max(ir_file.opset(path) for path in artifacts)
    return {"openvino": ir_file.oldest(newest) or version(), "opset": newest}


def _require(path: Path, target: Target) -> None:
    """Compare what the file needs with what the device has.

    Raises:
        ToolchainError: the device's release is older.
    """
    needed, here = minimum(path), target.runtime.get("openvino")
    release = str(needed["openvino"])
    if here is not None and parts(here) < parts(release):
        raise ToolchainError(
            f"the model needs openvino {release} or newer (opset {needed['opset']}); {target.name} has {here}",
            remedy=f"Update openvino on the device to {release} or newer.",
        )


def _check_signature(model: Model, path: Path) -> None:
    """Read the file back: inputs and outputs are those of the model, in its order.

    Raises:
        ModelError: they are not.
    """
    try:
        read = import_openvino().Core().read_model(str(path))
    except RuntimeError as error:
        raise ModelError(f"OpenVINO {version()} does not read its own file: {sentence(str(error))}") from error
    for kind, specs, ports in (("inputs", model.inputs, read.inputs), ("outputs", model.outputs, read.outputs)):
        names = [spec.name for spec in specs]
        found = [port.get_names() for port in ports]
        if len(names) != len(found) or any(name not in known for name, known in zip(names, found)):
            shown = ", ".join(port_name(port) for port in ports)
            raise ModelError(
                f"OpenVINO gives the model other {kind}: {shown}, and not {', '.join(names)}",
                remedy="Build for onnxruntime.",
            )
