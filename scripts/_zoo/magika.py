"""Magika: which type a file has, from 1,024 bytes of its start and 1,024 of its end.

The files are members of the packages that the other networks come from; the label is what their extension says.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from _zoo import sets
from _zoo.packages import BASIC_PITCH, GENSIM, MAGIKA, RAPIDOCR, SCIKIT_IMAGE, SCIKIT_LEARN, check, fetch, member

FOLDER = "magika/models/standard_v3_3"
WEIGHTS_SHA256 = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"

INPUT, HALF, BLOCK, PADDING, LEAST = "bytes", 1024, 4096, 256, 64
EACH = 24
"""Files of one type at most; odd ones calibrate, even ones judge."""

RIGHT = 0.864
"""Share of right answers of the float network; much of what is called .txt is something else."""

TYPES = {
    "bib": "bib",
    "c": "c",
    "cpp": "cpp",
    "csv": "csv",
    "gz": "gzip",
    "html": "html",
    "ipynb": "ipynb",
    "jpg": "jpeg",
    "json": "json",
    "md": "markdown",
    "npy": "npy",
    "npz": "npz",
    "png": "png",
    "py": "python",
    "pyx": "python",
    "rst": "rst",
    "so": "elf",
    "tif": "tiff",
    "txt": "txt",
    "xml": "xml",
    "yaml": "yaml",
}


def make(folder: Path, cache: Path) -> str:
    """Network, sets and source note; returns the figures."""
    package = fetch(MAGIKA, cache)
    weights = check(member(package, f"{FOLDER}/model.onnx"), WEIGHTS_SHA256, "model.onnx")
    (folder / "model.onnx").write_bytes(weights)
    labels = json.loads(member(package, f"{FOLDER}/config.min.json"))["target_labels_space"]
    (folder / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    found: dict[str, list[np.ndarray]] = {}
    for archive in (BASIC_PITCH, RAPIDOCR, SCIKIT_IMAGE, SCIKIT_LEARN, GENSIM):
        for kind, content in typed_files(fetch(archive, cache)):
            row = features(content)
            if row is not None and len(found.setdefault(kind, [])) < EACH:
                found[kind].append(row)
    for number, name in enumerate(("eval", "calib")):
        rows = [(labels.index(kind), row) for kind in sorted(found) for row in found[kind][number::2]]
        np.save(folder / f"{name}.npy", np.stack([row for _, row in rows]))
        np.save(folder / f"{name}-labels.npy", np.array([label for label, _ in rows], np.int64))
        sets.describe(
            folder / f"{name}.toml",
            name=f"magika-{name}",
            description=f"{len(rows)} files of packages, labelled by extension",
            inputs={INPUT: {"file": f"{name}.npy"}},
            settings={"metric": "top1", "labels": f"{name}-labels.npy"},
        )
    sets.write_build(folder, ("model.onnx",))
    sets.write_source(
        folder,
        "Magika standard_v3_3: magika 1.0.3, Apache-2.0.\n"
        "Files: parts of basic-pitch 0.4.0, rapidocr 3.10.0, scikit-image 0.26.0, scikit-learn 1.9.1, gensim 4.4.0,\n"
        "each under its package's licence.\n",
    )
    running = sets.session(folder / "model.onnx")
    rows_in, truth = np.load(folder / "eval.npy"), np.load(folder / "eval-labels.npy")
    right = [int(running.run(None, {INPUT: row[None]})[0].argmax()) == label for row, label in zip(rows_in, truth)]
    sets.expect("the share of right answers", float(np.mean(right)), RIGHT, 0.01)
    return f"{sets.megabytes(folder / 'model.onnx')}, top-1 {sum(right)}/{len(right)} files of {len(found)} types"


def typed_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Type and content of every member of a wheel whose extension is known, sorted by name."""
    with zipfile.ZipFile(archive) as wheel:
        for name in sorted(wheel.namelist()):
            kind = TYPES.get(name.rpartition(".")[2])
            if kind is not None and not name.rpartition("/")[2].startswith("."):
                yield kind, wheel.read(name)


def features(content: bytes) -> np.ndarray | None:
    """int32 [2048]: the start without leading and the end without trailing blanks, padded with 256; None if short."""
    start, end = content[:BLOCK].lstrip()[:HALF], content[-BLOCK:].rstrip()[-HALF:]
    if len(start) < LEAST or len(end) < LEAST:
        return None
    row = np.full(2 * HALF, PADDING, np.int32)
    row[: len(start)] = np.frombuffer(start, np.uint8)
    row[2 * HALF - len(end) :] = np.frombuffer(end, np.uint8)
    return row
