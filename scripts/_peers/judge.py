"""Judges models of one network against its float original, all on the same samples, each in the runtime concerned.

    python -m _peers.judge JOB.json      (in edgeopt's environment, the repository and scripts/ on PYTHONPATH)

A job with ``export`` writes the samples of a set as .npz files, one with ``save`` the network as others shall get it.
One with ``models`` runs each of them and the float original over the network's sets; the last line of stdout is JSON:
figures by model and set, and per-sample answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _peers import answers, figures, macs, running

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Mapping[str, np.ndarray]]


def main(job: Mapping[str, Any]) -> Mapping[str, Any]:
    shapes = {name: tuple(dims) for name, dims in job["shapes"].items()}
    if "save" in job:
        return {"rewrites": saved(Path(job["model"]), shapes, Path(job["save"]), fuse=job["fuse"])}
    reference = running.reference(Path(job["model"]), shapes)
    inputs = reference.inputs
    if "export" in job:
        return {"samples": export(Path(job["export"]), Path(job["set"]), inputs, reference.run)}
    loaded = {name: running.load(one) for name, one in job["models"].items()}
    found: dict[str, dict[str, Any]] = {name: {"sets": {}} for name in loaded}
    for title, entry in job["sets"].items():
        for name, seen in judged(reference.run, loaded, inputs, entry, Path(job["folder"])).items():
            found[name]["sets"][title] = seen
    first = next(iter(job["sets"].values()))
    feeds = next(streamed(job["folder"], first, inputs, reference.run))[0]
    for name, one in job["models"].items():
        found[name]["macs"] = macs.shares(one, feeds)
    return {"models": {name: found[name] for name in job["models"]}}


def saved(path: Path, shapes: Mapping[str, tuple[int, ...]], out: Path, *, fuse: bool) -> int:
    """Write the float network with fixed shapes, perhaps after edgeopt's rewrites; how many were made."""
    from edgeopt import loaders, passes
    from edgeopt.model import save

    model, count = loaders.load(path, shapes=shapes), 0
    for one in (*passes.NORMALIZE, *passes.FUSIONS) if fuse else ():
        done = passes.apply(one, model)
        model, count = done.model, count + done.count
    save(model, out)
    return count


def export(folder: Path, toml: Path, inputs: Any, run: Run) -> int:
    """The samples of a set as the float model takes them; how many."""
    from edgeopt import calibration

    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for feeds in calibration.samples(calibration.load_set(toml), inputs, run):
        np.savez(folder / f"{count:05d}.npz", **feeds)
        count += 1
    return count


def streamed(folder: Any, entry: Mapping[str, Any], inputs: Any, run: Run) -> Iterator[tuple[Feeds, Any, bool]]:
    """(feeds, label, whether a sequence begins) of every sample of a set."""
    from edgeopt import calibration

    dataset = calibration.load_set(Path(folder) / entry["set"])
    known = answers.labels(Path(folder), entry)
    for index, (feeds, begins) in enumerate(
        zip(calibration.samples(dataset, inputs, run), calibration.starts(dataset, None), strict=True)
    ):
        yield feeds, None if known is None else known[index], begins


def judged(
    reference: Run, models: Mapping[str, Run], inputs: Any, entry: Mapping[str, Any], folder: Path
) -> dict[str, dict[str, Any]]:
    """All models over one set; every model carries its own states from sample to sample."""
    from edgeopt import calibration

    carried = {c.name: c.output for c in calibration.load_set(folder / entry["set"]).carried}
    scorer = answers.scorer(folder, entry)
    wanted = figures.Rows(scorer)
    rows = {name: figures.Compared(scorer) for name in models}
    last: dict[str, Mapping[str, np.ndarray]] = {}
    for feeds, label, begins in streamed(folder, entry, inputs, reference):
        expected = reference(feeds)
        wanted.add(expected, feeds, label)
        for name, run in models.items():
            states = {} if begins else {state: last[name][output] for state, output in carried.items()}
            found = run({**feeds, **states})
            rows[name].add_pair(expected, found, feeds, label)
            if carried:
                last[name] = found
    return {name: one.result(wanted, entry) for name, one in rows.items()}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
