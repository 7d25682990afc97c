"""K02: damaged, hostile and newer bundles; and verification as the device does it."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt import bundle
from edgeopt.bundle.read import check_manifest
from edgeopt.errors import BundleError, QualityError, ToolchainError
from tests.unit.bundle.content import npy, runnable_content, sample_content

Json = dict[str, Any]

PLANTED: dict[str, Callable[[Json], object]] = {
    "schema is 'edgeopt.other/1'": lambda m: m.update(schema="edgeopt.other/1"),
    "schema is None": lambda m: m.pop("schema"),
    "written by a newer edgeopt": lambda m: m.update(schema="edgeopt.bundle/2"),
    "'identity' is missing": lambda m: m.pop("identity"),
    "'name' is of the wrong type": lambda m: m.update(name=["x"]),
    "'files' is of the wrong type": lambda m: m.update(files=[]),
    "artifacts": lambda m: m.update(artifacts=[]),
    "default_artifact is not the one": lambda m: m.update(default_artifact="model/other.onnx"),
    "leaves the bundle": lambda m: m["golden"]["samples"][0].update(inputs=["../../etc/passwd"]),
    "which 'files' does not list": lambda m: m["files"].pop("golden/000.input.0.npy"),
    "has two digests": lambda m: m["artifacts"][0].update(sha256="0" * 64),
    "'files' is not as the schema says": lambda m: m["files"].update({"bench.pyz": 3}),
    "the path '../evil'": lambda m: m["files"].update({"../evil": {"sha256": "0" * 64, "bytes": 1}}),
    "the same on some file systems": lambda m: m["files"].update({"Bench.pyz": {"sha256": "0" * 64, "bytes": 1}}),
}


@pytest.mark.parametrize("words", PLANTED)
def test_planted_faults_are_found(words: str) -> None:
    manifest = bundle.seal(sample_content())
    check_manifest(manifest)
    PLANTED[words](manifest)
    with pytest.raises(BundleError) as caught:
        check_manifest(manifest)
    assert words in caught.value.message


@pytest.mark.parametrize("manifest", [None, [], "x", 3, {"schema": {}}])
def test_other_json_is_not_a_manifest(manifest: object) -> None:
    with pytest.raises(BundleError, match="expected 'edgeopt\\.bundle/1'"):
        check_manifest(manifest)


def test_keys_of_later_versions_are_let_pass() -> None:
    manifest = bundle.seal(sample_content())
    manifest["licence"] = {"spdx": "MIT"}
    manifest["artifacts"][0]["compression"] = None
    check_manifest(manifest)


def test_folders_that_are_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.zip").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    for name, words in {"absent": "does not exist", "bundle.zip": "unpack it first", "empty": "not a bundle"}.items():
        with pytest.raises(BundleError, match=words) as caught:
            bundle.read(tmp_path / name)
        assert caught.value.remedy == "Name the folder that edgeopt build wrote."


def test_newer_bundle_says_what_to_do(tmp_path: Path) -> None:
    written = bundle.write(tmp_path / "out", sample_content())
    (written.root / "manifest.json").write_text(json.dumps({**written.manifest, "schema": "edgeopt.bundle/7"}))
    with pytest.raises(BundleError, match=r"newer edgeopt: it has edgeopt\.bundle/7") as caught:
        bundle.read(written.root)
    assert caught.value.remedy == "Update edgeopt."


def test_measurements_are_read_when_asked_for(tmp_path: Path) -> None:
    written = bundle.write(tmp_path / "out", sample_content())
    assert bundle.read(written.root).measurements == {"quick": {"schema": "edgeopt.measurement/1"}}
    (written.root / "measurements/bad.json").write_text("{")
    read = bundle.read(written.root)
    with pytest.raises(BundleError, match=r"measurements/bad\.json is not valid JSON"):
        _ = read.measurements
    shutil.rmtree(written.root / "measurements")
    assert bundle.read(written.root).measurements == {}


@pytest.fixture(scope="module")
def runnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.write(tmp_path_factory.mktemp("runnable") / "out", runnable_content()).root


@pytest.fixture
def copied(runnable: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runnable, tmp_path / "out"))


def test_intact_bundle_verifies(runnable: Path) -> None:
    result = bundle.verify(bundle.read(runnable))
    assert result["ok"] is True
    assert {a["precision"]: a["sqnr_db"] > 30 for a in result["artifacts"]} == {"int8": True, "float32": True}
    assert result["identity"] == bundle.read(runnable).manifest["identity"]


@pytest.mark.parametrize("path", ["model/gesture-net.int8.onnx", "golden/000.input.0.npy", "bench.pyz", "report.html"])
def test_one_flipped_bit_is_found_and_named(copied: Path, path: str) -> None:
    data = bytearray((copied / path).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / path).write_bytes(data)
    with pytest.raises(BundleError, match=f"{path} is damaged"):
        bundle.verify(copied)


def test_foreign_missing_and_linked_files_are_found(copied: Path) -> None:
    (copied / "extra").write_bytes(b"")
    with pytest.raises(BundleError, match="extra is not part of the bundle"):
        bundle.verify(copied)
    (copied / "extra").unlink()
    (copied / "report.md").unlink()
    with pytest.raises(BundleError, match=r"report\.md is missing"):
        bundle.verify(copied)
    (copied / "report.md").symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match="link"):
        bundle.verify(copied)


def test_manifest_with_another_contract_is_found_by_the_identity(copied: Path) -> None:
    manifest = json.loads((copied / "manifest.json").read_bytes())
    manifest["run"]["threads"] = 1
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"manifest\.json is damaged|do not match its identity"):
        bundle.verify(copied)


def test_runtime_that_is_too_old_is_a_tool_chain_error(tmp_path: Path) -> None:
    content = runnable_content()
    run = {**content.manifest["run"], "minimum": {"onnxruntime": "99.0", "opset": 20, "ir_version": 9}}
    written = bundle.write(tmp_path / "out", dataclasses.replace(content, manifest={**content.manifest, "run": run}))
    with pytest.raises(ToolchainError, match=r"onnxruntime 99\.0 or newer") as caught:
        bundle.verify(written)
    assert caught.value.exit_code == 6


def test_wrong_answers_are_a_quality_error_with_the_whole_result(tmp_path: Path) -> None:
    content = runnable_content()
    wrong = {**content.device_files, "golden/000.float32.0.npy": npy(np.ones((1, 10), np.float32))}
    written = bundle.write(tmp_path / "out", dataclasses.replace(content, device_files=wrong))
    with pytest.raises(QualityError, match=r"golden model/gesture-net\.int8\.onnx") as caught:
        bundle.verify(written)
    assert caught.value.exit_code == 7
    assert isinstance(caught.value, bundle.VerificationError)
    assert caught.value.result["ok"] is False
    assert len(caught.value.result["artifacts"]) == 2


def test_sealing_does_not_change_what_it_was_given() -> None:
    content = sample_content()
    before = copy.deepcopy(content.manifest)
    bundle.seal(content)
    assert content.manifest == before
