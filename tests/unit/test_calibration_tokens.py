"""JSON lines of token numbers: padding, masks, cutting, and lines that nobody should trust."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, groups, load_set, samples, targets, tokens
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

HEAD = 'schema = "edgeopt.set/1"\nname = "t"\nkind = "tokens"\nfile = "t.jsonl"\n'
INPUTS = "[inputs.input_ids]\npad = 9\n[inputs.attention_mask]\nmask = true\n[inputs.token_type_ids]\nvalue = 0\n"
LINES = [{"input_ids": [101, 7, 102]}, {"input_ids": [101, 102]}, {"input_ids": [101, 5, 6, 7, 102]}]


def specs(length: int | str, batch: int | str = "N", dtype: str = "int64") -> tuple[TensorSpec, ...]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return tuple(TensorSpec(name=name, dtype=dtype, shape=(batch, length)) for name in names)


def write(folder: Path, extra: str = "", lines: object = LINES, inputs: str = INPUTS) -> Path:
    if isinstance(lines, list):
        (folder / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif isinstance(lines, bytes):
        (folder / "t.jsonl").write_bytes(lines)
    (folder / "set.toml").write_text(HEAD + extra + inputs)
    return folder / "set.toml"


def read(path: Path, inputs: tuple[TensorSpec, ...]) -> list[dict[str, np.ndarray]]:
    return list(samples(load_set(path), inputs))


def refused(path: Path, inputs: tuple[TensorSpec, ...] = specs("S")) -> str:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(path), inputs)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_lines_keep_their_length_where_the_model_is_open(tmp_path: Path) -> None:
    found = read(write(tmp_path), specs("S"))
    assert [f["input_ids"].tolist() for f in found] == [[line["input_ids"]] for line in LINES]
    assert [f["attention_mask"].tolist() for f in found] == [[[1] * 3], [[1] * 2], [[1] * 5]]
    assert [f["token_type_ids"].shape for f in found] == [(1, 3), (1, 2), (1, 5)]


def test_the_models_fixed_length_pads(tmp_path: Path) -> None:
    found = read(write(tmp_path), specs(6, 1, "int32"))
    assert found[0]["input_ids"].tolist() == [[101, 7, 102, 9, 9, 9]]
    assert found[0]["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0]]
    assert found[0]["token_type_ids"].tolist() == [[0] * 6]
    assert found[0]["input_ids"].dtype == np.int32


@pytest.mark.parametrize(("extra", "sizes"), [("length = 8\n", [8, 8, 8]), ("multiple = 4\n", [4, 4, 8])])
def test_padding_to_a_size_or_a_multiple(extra: str, sizes: list[int], tmp_path: Path) -> None:
    assert [f["input_ids"].shape[1] for f in read(write(tmp_path, extra), specs("S"))] == sizes


def test_unnamed_open_axes_of_a_constant_take_the_length_of_the_line(tmp_path: Path) -> None:
    assert [f["token_type_ids"].shape[1] for f in read(write(tmp_path), specs("?"))] == [3, 2, 5]


def test_cutting_is_asked_for(tmp_path: Path) -> None:
    assert "line 3: has 5 numbers, 4 at most." in refused(write(tmp_path, "length = 4\n"))
    assert "truncate = true" in refused(write(tmp_path), specs(4))
    found = read(write(tmp_path, "length = 4\ntruncate = true\n"), specs("S"))
    assert found[2]["input_ids"].tolist() == [[101, 5, 6, 7]]
    assert found[2]["attention_mask"].tolist() == [[1] * 4]


def test_a_mask_that_is_stored_is_used(tmp_path: Path) -> None:
    lines = [{"ids": [1, 2, 3], "attention_mask": [1, 1, 0]}]
    inputs = '[inputs.input_ids]\nkey = "ids"\n[inputs.attention_mask]\n'
    found = read(write(tmp_path, lines=lines, inputs=inputs), specs("S")[:2])
    assert found[0]["attention_mask"].tolist() == [[1, 1, 0]]
    lines[0]["attention_mask"] = [1, 1]
    assert "lists of unlike length (ids: 3, attention_mask: 2)" in refused(
        write(tmp_path, lines=lines, inputs=inputs), specs("S")[:2]
    )


def test_empty_lines_are_no_samples_and_parts_are_taken(tmp_path: Path) -> None:
    text = "\n".join(json.dumps({"input_ids": [i]}) for i in range(9)) + "\n\n"
    path = write(tmp_path, "start = 1\nstride = 3\n", text.replace("\n", "\r\n\n", 2).encode())
    assert [f["input_ids"].item() for f in read(path, specs("S"))] == [1, 4, 7]


def test_labels_of_every_kind_come_from_the_lines(tmp_path: Path) -> None:
    lines = [{**line, "y": y, "s": s} for line, y, s in zip(LINES, (0, 1, 0), ("a", "b", "c"), strict=True)]
    dataset = load_set(write(tmp_path, 'metric = "top1"\nlabels = { key = "y" }\n', lines))
    assert list(targets(dataset) or ()) == [0, 1, 0]
    dataset = load_set(write(tmp_path, 'metric = "cer"\nlabels = { key = "s" }\n', lines))
    assert list(targets(dataset) or ()) == ["a", "b", "c"]
    assert 'line 1: has no label "z"' in refused(write(tmp_path, 'metric = "top1"\nlabels = { key = "z" }\n', lines))
    assert "wanted a class, counted from 0" in refused(
        write(tmp_path, 'metric = "top1"\nlabels = { key = "s" }\n', lines)
    )


def test_groups_by_number_and_by_file(tmp_path: Path) -> None:
    assert groups(load_set(write(tmp_path, "groups = { every = 2 }\n"))).tolist() == [0, 0, 1]
    (tmp_path / "g.txt").write_text("group\nanna\nbob\nanna\n")
    assert groups(load_set(write(tmp_path, 'groups = "g.txt"\n'))).tolist() == [0, 1, 0]
    (tmp_path / "g.txt").write_text("anna\nbob\n")
    assert "2 labels for 3 samples" in refused(write(tmp_path, 'groups = "g.txt"\n'))


BAD = [
    (b"", "t.jsonl: is empty."),
    (b"\n \n", "t.jsonl: is empty."),
    (b'{"input_ids": [1]}\n{"input_ids": [1\n', "line 2: is no JSON"),
    (b"[1, 2]\n", "line 1: is a list, wanted an object."),
    (b"\xff\xfe\n", "line 1: is no JSON"),
    (b'{"ids": [1]}\n', 'line 1: has no "input_ids" (it has ids)'),
    (b'{"input_ids": []}\n', '"input_ids" is 0 values, wanted a list of 1 to'),
    (b'{"input_ids": "abc"}\n', '"input_ids" is str, wanted a list'),
    (b'{"input_ids": [1, 2.0]}\n', '"input_ids" holds 2.0 at 1, wanted a whole number.'),
    (b'{"input_ids": [1, true]}\n', '"input_ids" holds True at 1'),
    (b'{"input_ids": [1, NaN]}\n', '"input_ids" holds nan at 1'),
    (b'{"input_ids": [1, 9223372036854775808]}\n', '"input_ids" holds 9223372036854775808 at 1'),
    (b'{"input_ids": [' + b"9" * 5000 + b"]}\n", "line 1: is no JSON"),
    (b"[" * 100_000 + b"\n", "line 1: is no JSON"),
]


@pytest.mark.parametrize(("content", "words"), BAD)
def test_Q07_a_bad_line_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in refused(write(tmp_path, lines=content))


def test_a_number_that_the_model_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, lines=[{"input_ids": [1, 1 << 40]}])
    assert 'line 1, input "input_ids": holds values that int32 cannot' in refused(path, specs("S", dtype="int32"))


def test_a_line_of_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "t.jsonl").open("wb") as stream:
        stream.truncate(10**9)
    with pytest.raises(CalibrationError, match=f"line 1 has more than {tokens.MAX_LINE_BYTES} bytes"):
        load_set(write(tmp_path, lines=None))


DESCRIPTIONS = [
    ("file", "fil", 'fil: unknown key for kind = "tokens". Did you mean "file"?'),
    ('"t.jsonl"', '"t.txt"', 'file: "t.txt" is none of .jsonl'),
    ('"t.jsonl"', '"../t.jsonl"', "leads out of the description's folder"),
    ("[inputs.input_ids]", "length = 4\nmultiple = 4\n[inputs.input_ids]", "multiple: cannot stand beside length"),
    ("mask = true", 'mask = true\nkey = "m"', "inputs.attention_mask.mask: cannot stand beside key or pad"),
    ("[inputs.input_ids]\npad = 9\n", "", "inputs: is missing"),
    ("pad = 9", "pad = 1.5", "inputs.input_ids.pad: must be an integer"),
    (
        "[inputs.input_ids]",
        'labels = { folder = "l" }\nmetric = "top1"\n[inputs.input_ids]',
        "a folder of labels is for",
    ),
    (
        "[inputs.input_ids]",
        'groups = { by = "folder" }\n[inputs.input_ids]',
        'by = "folder" is for samples that are files',
    ),
    ("[inputs.input_ids]", "groups = { }\n[inputs.input_ids]", "give either every = 20 or by"),
]


@pytest.mark.parametrize(("old", "new", "words"), DESCRIPTIONS)
def test_a_bad_description_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CalibrationError) as caught:
        load_set(path)
    assert words in str(caught.value)
