"""Weight files: safetensors by our own reader, pickles looked at first, names that must match."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import weights
from tests.unit.loaders.programs import Mark, saved, write_program
from tests.unit.loaders.scripts import write_script


def entry(kind: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def safetensors(path: Path, header: Any, data: bytes = bytes(24)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


GOOD = {"__metadata__": {"format": "pt"}, "b": entry("F16", [4], 16, 24), "a": entry("F32", [2, 2], 0, 16)}


def test_the_index_of_a_safetensors_file(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "w.safetensors", GOOD)
    start = path.stat().st_size - 24
    found = weights.index(path)
    assert [(one.name, one.type, one.shape, one.begin - start, one.bytes) for one in found] == [
        ("a", "F32", (2, 2), 0, 16),
        ("b", "F16", (4,), 16, 8),
    ]
    assert weights.check(path, trust_pickle=False) == "safetensors"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": entry("F32", [2, 2], 0, 16)}, "the file holds 24"),
        ({"a": entry("F32", [2, 2], 8, 24)}, "leaves a gap"),
        ({"a": entry("F32", [6], 0, 24), "b": entry("F32", [2], 16, 24)}, "overlaps"),
        ({"a": entry("F32", [2, 2], 0, 32)}, "its shape [2, 2] needs 16"),
        ({"a": entry("F32", [2**40, 2**40], 0, 24)}, "needs"),
        ({"a": entry("F32", [10], 0, 40)}, "the file holds 24"),
        ({"a": entry("F32", [-2], 0, 24)}, "no list of numbers"),
        ({"a": entry("F32", [2.0], 0, 8)}, "no list of numbers"),
        ({"a": entry("F32", [True], 0, 4)}, "no list of numbers"),
        ({"a": entry("F32", [0], 16, 8)}, "needs 0"),
        ({"a": entry("C64", [3], 0, 24)}, "unknown type C64"),
        ({"a": {"dtype": "F32", "shape": [6]}}, "not described"),
        ({"a": [1]}, "not described"),
        ([1, 2], "not a safetensors|no file of weights"),
        (b'{"a": 1, "a": 2}', "a name occurs twice"),
        (b"{" * 100_000, "not what safetensors writes"),
        (b'{"a": \xff}', "not what safetensors writes"),
    ],
)
def test_a_damaged_or_hostile_header(tmp_path: Path, header: Any, words: str) -> None:
    path = safetensors(tmp_path / "w.safetensors", header)
    with pytest.raises(ModelError) as caught:
        weights.check(path, trust_pickle=True)
    assert any(word in caught.value.message for word in words.split("|"))
    assert "w.safetensors" in caught.value.message


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for length in (2**63, 10**9, 1000, 1):
        path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(50))
        with pytest.raises(ModelError, match="does not fit into"):
            weights.check(path, trust_pickle=False)


def test_pickles_are_refused_and_do_not_run(tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "w.pth"
    legacy = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    for data in (saved({"w": Mark(mark)}), legacy + pickle.dumps({"w": Mark(mark)}, 2)):
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"asks for posix\.system, and unpickling runs code") as caught:
            weights.check(path, trust_pickle=False)
        assert "--trust-pickle" in str(caught.value.remedy)
        assert weights.check(path, trust_pickle=True) == "torch"
    path.write_bytes(pickle.dumps({"w": Mark(mark)}))
    with pytest.raises(ModelError, match="nothing that torch.save wrote"):
        weights.check(path, trust_pickle=True)
    assert not mark.exists()


def test_other_files(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.pth", "does not exist"),
        (tmp_path, "does not exist"),
        (write_program(tmp_path / "a.pt2"), "a whole network"),
        (write_script(tmp_path / "a.pt"), "a whole network"),
    ):
        with pytest.raises(ModelError, match=words):
            weights.check(path, trust_pickle=True)
    other = tmp_path / "w.pth"
    other.write_bytes(b"something else")
    with pytest.raises(ModelError, match="no file of weights"):
        weights.check(other, trust_pickle=True)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", b"")
    with pytest.raises(ModelError, match="a zip archive without weights"):
        weights.check(other, trust_pickle=True)


@pytest.mark.needs_torch
def test_values_of_every_type(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    header, data, wanted = {}, b"", {}
    for number, (kind, name) in enumerate(weights._TORCH_TYPES.items()):
        tensor = torch.arange(4).to(getattr(torch, name)).reshape(2, 2)
        raw = tensor.view(torch.uint8).numpy().tobytes()
        header[f"t{number}"] = entry(kind, [2, 2], len(data), len(data) + len(raw))
        data += raw
        wanted[f"t{number}"] = tensor
    header["none"] = entry("F32", [0, 3], len(data), len(data))
    header["one"] = entry("F32", [], len(data), len(data) + 4)
    path = safetensors(tmp_path / "w.safetensors", header, data + np.float32(7).tobytes())
    read = weights.read(path, "safetensors", trust_pickle=False)
    for name, tensor in wanted.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name].view(torch.uint8), tensor.view(torch.uint8))
    assert read["none"].shape == (0, 3)
    assert read["one"].shape == ()
    assert read["one"].item() == 7


@pytest.mark.needs_torch
def test_checkpoints_and_names_that_must_match(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    state = net.state_dict()
    path = tmp_path / "w.pth"
    for held in (
        state,
        {"state_dict": state, "epoch": 3},
        {"model": {f"module.{k}": v for k, v in state.items()}},
    ):
        torch.save(held, path)
        assert weights.check(path, trust_pickle=False) == "torch"
        read = weights.read(path, "torch", trust_pickle=False)
        assert sorted(read) == sorted(state)
    del read["1.weight"]  # tied: stored under one of its names
    read["0.weight"] += 1
    weights.put(net, read, "w.pth", "nets:make")
    assert torch.equal(net[1].weight, read["0.weight"])
    for change, words in (
        (
            {"1.bais": read["1.bias"], "1.bias": None},
            r"1 weights are missing \(1.bias\); 1 are unknown \(1.bais\).*mean",
        ),
        ({"0.bias": torch.zeros(4)}, r"0.bias \[4\] for \[3\]"),
        ({"0.weight": None}, r"2 weights are missing \(0.weight, 1.weight\)"),
    ):
        edited = {k: v for k, v in (read | change).items() if v is not None}
        with pytest.raises(ModelError, match=words):
            weights.put(net, edited, "w.pth", "nets:make")
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert weights.check(path, trust_pickle=False) == "torch"
    assert sorted(weights.read(path, "torch", trust_pickle=False)) == sorted(state)
    torch.save([1, 2], path)
    with pytest.raises(ModelError, match="holds no state dict"):
        weights.read(path, "torch", trust_pickle=False)
    torch.save(net, path)
    with pytest.raises(ModelError, match="asks for"):
        weights.check(path, trust_pickle=False)
    assert sorted(weights.read(path, "torch", trust_pickle=True)) == sorted(state)
