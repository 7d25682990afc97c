"""Networks of the zoo: the plan's verdict on each form, and whether the release that it is about loads that form.

The runtimes are asked, not the build: a build refuses by the same tables and would agree with them whatever they say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _kernels.compared import Compared, compared
from _kernels.of_onnxruntime import answer


def folders(zoo: Path, names: Sequence[str]) -> list[Path]:
    """The networks of the zoo that are there as onnx files; those that are named, else all."""
    found = [folder for folder in sorted(zoo.iterdir()) if (folder / "model.onnx").is_file()]
    return [folder for folder in found if not names or folder.name in names]


def compare(folder: Path, cache: Path) -> list[Compared]:
    """Each form of a network, once for all profiles that are judged by the same facts."""
    from edgeopt import loaders
    from edgeopt.backends.registry import BACKENDS
    from edgeopt.pipeline import Request
    from edgeopt.pipeline import survey as surveys
    from edgeopt.pipeline.admit import admit

    request = Request(model=folder / "model.onnx", target="all", out=Path("unused"))
    targets, _ = surveys._targets()
    forms = surveys._Forms(request, admit(loaders.load(request.model), targets[0]), targets[0])
    asked: dict[str, list[tuple[str, str, Sequence[Any]]]] = {}
    found, seen = [], set()
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as text:
        for target, name in [(one, name) for one in targets for name in one.backends]:
            backend, wanted = BACKENDS.get(name), target.runtime.get(name, "")
            key = (name, target.opset_max, target.ir_version_max, wanted)
            if backend is None or backend.probe() is not None or key in seen:
                continue
            seen.add(key)
            finished, quantized = forms.finished(backend, target), forms.int8(backend, target)
            made: list[tuple[str, Any, Sequence[Any]]] = []
            made.append(("float", finished, surveys._judged(backend, target, forms, finished)))
            made += [] if quantized is None else [("int8", quantized, backend.judge(quantized, target))]
            for form, model, missing in made:
                what = f"{form} {target.name} {wanted}"
                if name == "openvino":
                    found.append(compared(f"{folder.name} openvino", what, missing, _on_openvino(model, Path(text))))
                    continue
                release = _release(wanted)
                number = f"{len(asked.setdefault(release, []))}"
                _written(model, target, release, Path(text) / release / f"{number}.onnx")
                asked[release].append((number, what, missing))
        for release, questions in asked.items():
            said = answer(release, cache, Path(text) / release)
            for name, what, missing in questions:
                where = f"{folder.name} onnxruntime"
                found.append(compared(where, f"{what} as {release}", missing, said["refused"].get(name, "")))
    return found


def _release(wanted: str) -> str:
    """The release of the table that speaks for one; the newest where a profile names none."""
    from edgeopt.backends.onnxruntime import kernels

    return kernels.judged_by(wanted)[1] if wanted else str(kernels.table()["releases"][-1])


def _written(model: Any, target: Any, release: str, path: Path) -> None:
    """A graph as a build would write it; as it is where it cannot be taken down to the profile's operator set."""
    from edgeopt.backends.onnxruntime.lowering import at_opset
    from edgeopt.backends.onnxruntime.releases import reads
    from edgeopt.errors import ToolchainError
    from edgeopt.model import save

    path.parent.mkdir(exist_ok=True)
    try:
        levelled = at_opset(model, target).clone()
    except ToolchainError:
        levelled = model.clone()
    levelled.ir.ir_version = min(levelled.ir.ir_version, reads(release)[1])
    save(levelled, path)


def _on_openvino(model: Any, folder: Path) -> str:
    """What OpenVINO says against a graph as edgeopt writes it in onnx; empty where it compiles it."""
    import openvino

    from edgeopt.model import save

    path = folder / "openvino.onnx"
    save(model, path)
    try:
        core = openvino.Core()
        core.compile_model(core.read_model(path), "CPU", {"INFERENCE_NUM_THREADS": 1})
    except RuntimeError as error:
        return " ".join(str(error).split())
    return ""
