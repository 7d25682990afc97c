"""K02: names that a bundle may hold, and text files of unknown origin."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.bundle.layout import (
    canonical,
    check_name,
    check_names,
    load_json,
    parse_sums,
    read_text,
    safe_name,
    sums_text,
)
from edgeopt.errors import BundleError

HOSTILE = ["", "/abs", "../evil", "a/../../evil", "a/..", ".", "./a", "a//b", "a/", "a\\b", "..\\evil", "c:/x"]
HOSTILE += [
    "a\nb",
    "a\0b",
    "a\x1b[31m",
    "a\u2028b",
    "a\u202eb",
    "a\udcff",
    " a",
    "a ",
    "b./a",
    "a?",
    "a*",
    'a"',
    "a|b",
    "<a>",
]
HOSTILE += ["x" * 256, "ü" * 128, "d/" * 600 + "x"]
GOOD = [
    "model/m.int8.onnx",
    "golden/000.input.0.npy",
    "a b",
    "mödel/模型 (final).onnx",
    ".hidden",
    "-dash",
    "a..b",
    "x" * 255,
]

text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(BundleError) as caught:
        check_name(name)
    caught.value.message.encode()  # printable even when the name is not
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", GOOD)
def test_good_names_pass(name: str) -> None:
    check_names([name])


@pytest.mark.parametrize(
    "names",
    [
        ["A.txt", "a.txt"],
        ["Model/a", "model/b"],
        ["straße", "STRASSE"],
        ["u\u0308", "ü"],
        ["a", "a/b"],
        ["a/b", "A"],
        ["a", "a"],
    ],
)
def test_names_that_cannot_live_together(names: list[str]) -> None:
    for order in (names, names[::-1]):
        with pytest.raises(BundleError):
            check_names(order)


@given(st.text(max_size=300))
def test_any_text_becomes_a_usable_name(any_text: str) -> None:
    name = safe_name(any_text)
    check_names([f"model/{name}.int8.onnx"])
    assert safe_name(name) == name
    assert len(name.encode()) <= 80


@pytest.mark.parametrize(
    ("given_text", "name"),
    [
        ("模型 v1 (final)", "模型-v1-final"),
        ("../../etc/passwd", "etc-passwd"),
        ("efficientnet-lite0", "efficientnet-lite0"),
        ("a\udcff", "a"),
        ("", "model"),
        ("...", "model"),
        ("x" * 200, "x" * 80),
    ],
)
def test_safe_name_keeps_what_it_can(given_text: str, name: str) -> None:
    assert safe_name(given_text) == name


@given(values)
def test_canonical_json_is_one_form_for_one_value(value: object) -> None:
    first = canonical(value)
    assert canonical(load_json(first.decode(), "x")) == first
    assert canonical(json.loads(json.dumps(value, indent=3, sort_keys=False))) == first
    assert b"\n" not in first


@given(st.dictionaries(text, st.integers(), max_size=8), st.randoms())
def test_canonical_json_does_not_depend_on_order(mapping: dict[str, int], random: object) -> None:
    items = list(mapping.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert canonical(dict(items)) == canonical(mapping)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\udcff"])
def test_canonical_json_refuses_what_json_cannot_hold(value: object) -> None:
    with pytest.raises(ValueError):
        canonical([value])


@pytest.mark.parametrize(
    "source", ['{"a": 1, "a": 2}', "[NaN]", "[Infinity]", "[" * 100_000, "{", "", '"\n"', "[1e1], 2", "9" * 5000]
)
def test_json_that_is_not_plain_is_refused(source: str) -> None:
    with pytest.raises(BundleError, match=r"^here is not valid JSON"):
        load_json(source, "here")


@given(st.dictionaries(st.sampled_from(GOOD), st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}")))
def test_lists_of_hashes_round_trip(sums: dict[str, str]) -> None:
    assert parse_sums(sums_text(sums).decode(), "x") == sums


@pytest.mark.parametrize(
    "line", ["x", "0" * 64 + " a", "0" * 63 + "  a", "0" * 64 + "  ../a", "\\" + "0" * 64 + "  a", "G" * 64 + "  a"]
)
def test_damaged_lists_are_refused(line: str) -> None:
    with pytest.raises(BundleError):
        parse_sums(line + "\n", "SHA256SUMS")
    with pytest.raises(BundleError, match="SHA256SUMS: line 2"):
        parse_sums(("0" * 64 + "  a\n") * 2, "SHA256SUMS")


def test_text_files_are_read_with_suspicion(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("ü")
    assert read_text(file) == "ü"
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    expected = {
        "link": "cannot be read",
        "pipe": "not a regular file",
        "bytes": "not UTF-8",
        "sparse": "larger than 16 MiB",
        "absent": "is missing",
        ".": "cannot be read|not a regular file",
    }
    for name, words in expected.items():
        with pytest.raises(BundleError, match=words):
            read_text(tmp_path / name)
