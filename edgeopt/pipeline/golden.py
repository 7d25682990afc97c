"""Golden samples: inputs with the float outputs and each artifact's own, for a check on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgeopt.interpreter import Interpreter
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.steps import Outcome

MARGIN_DB = 3.0
"""A device may be this much noisier than the build host: its kernels round differently."""

CEILING_DB = 80.0
"""No device is asked for more: float kernels differ by a few units in the last place."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
    """Files by bundle path, the manifest's section, and the inputs of each sample as files by input name."""

    files: Mapping[str, Path]
    section: Mapping[str, Any]
    inputs: tuple[dict[str, str], ...]


def record(outcome: Outcome, sets: Sets, backend: ModuleType, work: Path) -> Golden:
    """Run the probes through the model as loaded (``float32``) and each artifact; write them as ``.npy``.

    Without probes, because nothing can be run, there are no samples.
    """
    from runtime_bench import sqnr_by_output_db

    if not sets.probes:
        unknown = {p: {"sqnr_db": CEILING_DB} for p in outcome.artifacts}
        return Golden(files={}, section={"count": 0, "samples": [], "tolerance": unknown}, inputs=())
    (work / "golden").mkdir()
    libraries = outcome.original.origin.libraries
    artifacts = outcome.artifacts.items()
    runs = {p: backend.interpreter(a.path, libraries, optimize=a.optimize) for p, a in artifacts}
    reference = Interpreter(outcome.original)
    files: dict[str, Path] = {}
    samples, inputs = [], []
    outputs: dict[str, list[list[np.ndarray]]] = {p: [] for p in ("reference", *runs)}

    def put(number: int, kind: str, arrays: list[np.ndarray]) -> list[str]:
        names = [f"golden/{number:03d}.{kind}.{index}.npy" for index in range(len(arrays))]
        for name, array in zip(names, arrays):
            np.save(work / name, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
            files[name] = work / name
        return names

    for number, feeds in enumerate(sets.probes):
        expected = reference.run(feeds)
        outputs["reference"].append(list(expected.values()))
        for precision, interpreter in runs.items():
            own = interpreter.run(feeds)
            outputs[precision].append([own[name] for name in expected])
        fed = put(number, "input", [feeds[spec.name] for spec in sets.inputs])
        written = {"float32": put(number, "float32", outputs["reference"][-1])}
        written |= {p: put(number, p, outputs[p][-1]) for p in runs if p != "float32"}
        samples.append({"inputs": fed, "outputs": written})
        inputs.append({spec.name: str(work / name) for spec, name in zip(sets.inputs, fed)})
    tolerance = {p: _tolerance(sqnr_by_output_db(outputs["reference"], outputs[p])) for p in runs}
    section = {"count": len(samples), "samples": samples, "tolerance": tolerance}
    return Golden(files=files, section=section, inputs=tuple(inputs))


def _tolerance(reached: Sequence[float]) -> dict[str, object]:
    """What a device must reach: the worst output, and each of several by itself.

    The worst alone would let a good output fall to the level of a bad one, and one without signal (all zeros in the
    float model) would let every other fall to nothing.
    """
    limits = [round(min(CEILING_DB, value - MARGIN_DB), 2) for value in reached]
    return {"sqnr_db": min(limits), **({"outputs_db": limits} if len(limits) > 1 else {})}
