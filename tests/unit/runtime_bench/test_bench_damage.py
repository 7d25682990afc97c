"""verify refuses damaged and hostile bundles: one test for each way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import runtime_bench
from runtime_bench import manifest, sums

Bundle = Any


def refused(bundle: Bundle) -> tuple[int, str]:
    with pytest.raises(runtime_bench.VerifyFailure) as caught:
        runtime_bench.verify_bundle(bundle.root)
    assert "\n" not in caught.value.message
    return caught.value.code, caught.value.message


def test_flipped_byte(bundle: Bundle) -> None:
    path = bundle.root / "model/m.int8.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert refused(bundle) == (9, "model/m.int8.onnx is damaged: its sha256 is not the one in SHA256SUMS")


def test_flipped_byte_in_a_record(bundle: Bundle) -> None:
    (bundle.root / "README.md").write_text("read mE\n")
    assert refused(bundle) == (9, "README.md is damaged: its sha256 is not the one in RECORDS.sha256")


def test_missing_file(bundle: Bundle) -> None:
    (bundle.root / "golden/001.input.0.npy").unlink()
    assert refused(bundle) == (9, "golden/001.input.0.npy is missing")


@pytest.mark.parametrize("name", ["SHA256SUMS", "RECORDS.sha256"])
def test_missing_list(bundle: Bundle, name: str) -> None:
    (bundle.root / name).unlink()
    assert refused(bundle) == (9, f"{name} is missing")


@pytest.mark.parametrize("name", ["extra.txt", "model/numpy.py", "golden/x.json", "notes.json"])
def test_extra_file(bundle: Bundle, name: str) -> None:
    (bundle.root / name).write_text('{"a": 1}')
    assert refused(bundle) == (9, f"{name} is not part of the bundle: no list has it")


def test_own_results_beside_the_bundle_do_not_spoil_it(bundle: Bundle) -> None:
    (bundle.root / "out.json").write_text('{"schema": "edgeopt.measurement/1", "effort": "quick"}')
    result = runtime_bench.verify_bundle(bundle.root)
    assert result["ok"]
    assert result["checks"][0]["detail"].endswith("; not part of it: out.json")
    (bundle.root / "model/out.json").write_text('{"schema": "edgeopt.measurement/1"}')
    assert refused(bundle)[1].startswith("model/out.json is not part of the bundle")


@pytest.mark.parametrize(
    "path",
    ["../evil", "/etc/passwd", "model/../../evil", "model//x", "./x", "a\\b", "C:/x", "model/\x1b[2J"],
)
def test_bad_path_in_a_list(bundle: Bundle, path: str) -> None:
    text = (bundle.root / "SHA256SUMS").read_text(encoding="utf-8")
    (bundle.root / "SHA256SUMS").write_text(text + f"{'0' * 64}  {path}\n", encoding="utf-8")
    code, message = refused(bundle)
    assert code == 9
    assert "leaves the bundle or is no plain path" in message
    assert message.isprintable()


def test_absolute_path_in_the_manifest(bundle: Bundle) -> None:
    bundle.manifest["golden"]["samples"][0]["inputs"] = ["/etc/passwd"]
    bundle.write_manifest()
    assert refused(bundle)[1] == "manifest.json names a path that leaves the bundle or is no plain path: /etc/passwd"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "SHA256SUMS lists no file"),
        ("hello\n", 'SHA256SUMS, line 1: not "<sha256>  <path>"'),
        (f"{'0' * 64}  a\n{'1' * 64}  a\n", "SHA256SUMS lists a twice"),
        (f"{'0' * 64}  a\r\n", "leaves the bundle or is no plain path"),
    ],
)
def test_malformed_list(bundle: Bundle, text: str, words: str) -> None:
    (bundle.root / "SHA256SUMS").write_bytes(text.encode())
    code, message = refused(bundle)
    assert code == 9
    assert words in message


def test_link_that_leaves(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside.onnx"
    path = bundle.root / "model/m.int8.onnx"
    path.rename(outside)
    path.symlink_to(outside)
    assert refused(bundle) == (9, "model/m.int8.onnx is a link; a bundle holds plain files only")
    with pytest.raises(runtime_bench.VerifyFailure, match="is a link"):
        sums.check_listed(str(bundle.root), "SHA256SUMS")


def test_linked_folder_and_unlisted_link(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "model").rename(tmp_path / "moved")
    (bundle.root / "model").symlink_to(tmp_path / "moved")
    assert refused(bundle) == (9, "model is a link; a bundle holds plain files only")
    with pytest.raises(runtime_bench.VerifyFailure, match=r"model/m\.float32\.onnx is a link"):
        sums.check_listed(str(bundle.root), "SHA256SUMS")


def test_a_linked_bundle_folder_is_fine(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle.root)
    assert runtime_bench.verify_bundle(str(tmp_path / "link"))["ok"]


def test_pipe_instead_of_a_file(bundle: Bundle) -> None:
    (bundle.root / "README.md").unlink()
    os.mkfifo(bundle.root / "README.md")
    assert refused(bundle) == (9, "README.md is not a plain file")


def test_wrong_identity(bundle: Bundle) -> None:
    bundle.manifest["identity"] = "0" * 64
    bundle.write_manifest()
    bundle.write_list("RECORDS.sha256", {n: _sha(bundle, n) for n in ("README.md", "manifest.json")})
    code, message = refused(bundle)
    assert code == 9
    assert message.startswith("the bundle's contents do not match its identity: 000")


def test_identity_covers_the_contract_and_nothing_measured(bundle: Bundle) -> None:
    files = {"model/a": "1"}
    before = manifest.identity(bundle.manifest, files)
    measured = {**bundle.manifest, "memory": {"int8": 1}, "measured_on": {"machine": "x"}, "verdict": {}}
    assert manifest.identity(measured, files) == before
    assert manifest.identity(bundle.manifest, {"model/a": "2"}) != before
    for key, value in (("run", {**bundle.manifest["run"], "threads": 9}), ("target", {"name": "another"})):
        assert manifest.identity({**bundle.manifest, key: value}, files) != before


def _sha(bundle: Bundle, name: str) -> str:
    return sums._sha256(str(bundle.root), name)


def test_artifact_digest_that_contradicts_the_list(bundle: Bundle) -> None:
    bundle.manifest["artifacts"][0]["sha256"] = "1" * 64
    bundle.write_manifest()
    bundle.write_list("RECORDS.sha256", {n: _sha(bundle, n) for n in ("README.md", "manifest.json")})
    assert refused(bundle) == (9, "model/m.int8.onnx has two digests, in manifest.json and in SHA256SUMS")


def test_no_bundle_and_foreign_schema(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(runtime_bench.VerifyFailure, match=r"no manifest\.json in .*: not an edgeopt bundle"):
        runtime_bench.verify_bundle(str(tmp_path))
    bundle.manifest["schema"] = "edgeopt.bundle/2"
    bundle.write_manifest()
    code, message = refused(bundle)
    assert (code, "edgeopt.bundle/2" in message) == (9, True)


@pytest.mark.parametrize("text", ["", "[1]", '{"schema": NaN}', '{"schema": "edgeopt.bundle/1"}', "[" * 100000, "\xff"])
def test_manifest_that_is_none(bundle: Bundle, text: str) -> None:
    (bundle.root / "manifest.json").write_bytes(text.encode("latin-1"))
    code, message = refused(bundle)
    assert code == 9
    assert "manifest.json" in message


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("run",), None),
        (("run", "threads"), "4"),
        (("run", "threads"), True),
        (("artifacts",), []),
        (("artifacts", 0, "path"), 7),
        (("default_artifact",), "model/m.float32.onnx"),
        (("signature", "inputs"), [{}]),
        (("golden", "samples"), []),
        (("golden", "samples", 0, "inputs"), []),
        (("golden", "samples", 0, "outputs"), {"int8": ["golden/000.int8.0.npy"]}),
        (("golden", "tolerance", "int8"), {"sqnr_db": "high"}),
        (("golden", "tolerance"), {"float32": {"sqnr_db": 1.0}}),
        (("backend", "name"), None),
        (("target",), None),
        (("target", "name"), 7),
        (("target", "arch"), ["x86_64"]),
        (("target", "isa"), "avx2"),
        (("target", "isa"), ["avx2", "\x1b[2J"]),
        (("artifacts", 0, "format"), None),
    ],
)
def test_manifest_fields_are_checked(bundle: Bundle, keys: tuple[Any, ...], value: Any) -> None:
    place = bundle.manifest
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(runtime_bench.VerifyFailure, match=r"manifest\.json") as caught:
        manifest.parse(bundle.manifest)
    assert caught.value.code == 9


def test_a_manifest_cannot_allow_what_is_for_the_user_to_allow(bundle: Bundle) -> None:
    bundle.manifest["run"]["options"] = {"allow_fallback": "1", "provider": "x", "threads": "9", "session.a": "1"}
    assert manifest.parse(bundle.manifest).options == {"session.a": "1"}
