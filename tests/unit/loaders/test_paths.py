"""C03: spaces, non-ASCII, leading dash, "..", links, long and undecodable names, for loading and saving."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from edgeopt.model import save
from tests.unit.loaders.files import SIDE, conv_model, dense_weight, external_model, run, write

X = np.random.default_rng(2).normal(size=(1, SIDE)).astype(np.float32)

NAMES = (
    "mödel dir/模型 v1 (final).onnx",
    "-m.onnx",
    "a b/'quo\"ted'.onnx",
    "n" * 195 + ".onnx",
    "tab\tand\nnewline.onnx",
    os.fsdecode(b"latin-\xe9.onnx"),
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_load_and_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write(tmp_path / name, external_model("wëights 1.bin"))
    (tmp_path / name).with_name("wëights 1.bin").write_bytes(dense_weight().tobytes())
    expected = X @ dense_weight()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, tmp_path / "sub" / ".." / name, Path(name)):
        np.testing.assert_allclose(run(load(path).ir, {"x": X})[0], expected, rtol=1e-4, atol=1e-4)
    out = tmp_path / "out" / Path(name).name
    out.parent.mkdir()
    loaded = load(Path(name))
    for external_data in (False, True) if name.isascii() or "mödel" in name else (False,):
        written = save(loaded, out, external_data=external_data)
        assert [p.name for p in written] == [out.name, f"{out.name}.data"][: 1 + external_data]
        assert sorted(p.name for p in out.parent.iterdir()) == sorted(p.name for p in written)
        np.testing.assert_allclose(run(load(out).ir, {"x": X})[0], expected, rtol=1e-4, atol=1e-4)


def test_a_name_that_is_not_utf8_cannot_stand_inside_a_model(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "m.onnx", conv_model()))
    with pytest.raises(ModelError, match="no valid UTF-8"):
        save(loaded, tmp_path / NAMES[-1], external_data=True)


def test_a_linked_folder_and_a_trailing_slash(tmp_path: Path) -> None:
    path = write(tmp_path / "real" / "m.onnx", external_model())
    (tmp_path / "real" / "w.bin").write_bytes(dense_weight().tobytes())
    (tmp_path / "link").symlink_to("real")
    assert load(tmp_path / "link" / "m.onnx").inputs[0].name == "x"
    assert load(f"{path}/").inputs[0].name == "x"


def test_messages_are_one_line_of_text(tmp_path: Path) -> None:
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        with pytest.raises(ModelError) as caught:
            load(path)
        assert str(caught.value).encode("utf-8")
        assert "\n" not in str(caught.value)
        assert "is an empty file" in str(caught.value)


def test_a_name_too_long_or_impossible(tmp_path: Path) -> None:
    for path in (tmp_path / ("n" * 300 + ".onnx"), f"{tmp_path}/a\0b.onnx"):
        with pytest.raises(ModelError):
            load(path)
    loaded = load(write(tmp_path / "m.onnx", conv_model()))
    with pytest.raises(ModelError, match="cannot be written"):
        save(loaded, tmp_path / ("n" * 300 + ".onnx"))
    with pytest.raises(ModelError, match="cannot be written"):
        save(loaded, tmp_path / "none" / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
