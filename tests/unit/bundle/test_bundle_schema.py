"""The JSON Schema of the manifest takes what is written and refuses planted errors; the documentation is true."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from edgeopt import bundle
from tests.unit.bundle.content import sample_content

Json = dict[str, Any]

DOCS = Path(__file__).resolve().parents[3] / "docs" / "bundle-format.md"
SCHEMA = json.loads(resources.files("edgeopt").joinpath("schema/bundle.schema.json").read_bytes())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

PLANTED: dict[str, Callable[[Json], object]] = {
    "no identity": lambda m: m.pop("identity"),
    "identity is not a hash": lambda m: m.update(identity="abc"),
    "other version": lambda m: m.update(schema="edgeopt.bundle/2"),
    "unknown role": lambda m: m["artifacts"][0].update(role="spare"),
    "two defaults": lambda m: m["artifacts"][1].update(role="default"),
    "no default": lambda m: m["artifacts"].pop(0),
    "no artifact": lambda m: m.update(artifacts=[]),
    "threads as text": lambda m: m["run"].update(threads="4"),
    "no threads": lambda m: m["run"].update(threads=0),
    "option is no text": lambda m: m["run"]["options"].update(x=1),
    "path leaves": lambda m: m["files"].update({"../x": m["files"]["bench.pyz"]}),
    "absolute path": lambda m: m.update(default_artifact="/model.onnx"),
    "backslash": lambda m: m["golden"]["samples"][0].update(inputs=["a\\b"]),
    "dots inside": lambda m: m["artifacts"][0].update(path="model/../x"),
    "golden without float": lambda m: m["golden"]["samples"][0]["outputs"].pop("float32"),
    "tolerance without a number": lambda m: m["golden"]["tolerance"].update(int8={"sqnr_db": None}),
    "negative size": lambda m: m["artifacts"][0].update(bytes=-1),
    "unknown status": lambda m: m["steps"][0].update(status="maybe"),
    "missing figure without a reason": lambda m: m["memory"]["int8"]["model"].pop("reason"),
    "share above one": lambda m: m["quality"]["agreement"].update(top1=1.2),
    "negative interval": lambda m: m["quality"]["metric"].update(half_width=-0.1),
    "unknown word for SQNR": lambda m: m["quality"]["outputs"][0].update(sqnr_db="inf"),
    "quality without a claim": lambda m: m["quality"].pop("verified"),
    "verdict missing": lambda m: m.pop("verdict"),
    "not said where measured": lambda m: m["measured_on"].pop("is_target"),
    "unknown place": lambda m: m["placement"]["nodes"][0].update(runs="gpu"),
    "no target name": lambda m: m["target"].pop("name"),
}


def errors(manifest: Json) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(manifest)]


def test_schema_is_a_schema_and_takes_what_is_written(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    written = bundle.write(tmp_path / "out", sample_content())
    assert errors(json.loads((written.root / "manifest.json").read_bytes())) == []
    assert SCHEMA["properties"]["schema"]["const"] == bundle.SCHEMA


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_error_is_refused(fault: str) -> None:
    manifest = copy.deepcopy(bundle.seal(sample_content()))
    PLANTED[fault](manifest)
    assert errors(manifest)


def test_build_without_data_is_valid() -> None:
    manifest = bundle.seal(sample_content())
    manifest["quality"] = {
        "verified": False, "set": None, "samples": 0, "outputs": [], "agreement": None, "metric": None
    }  # fmt: skip
    manifest["later_key"] = 1
    assert errors(manifest) == []


def test_an_output_that_is_nothing_but_error_is_valid() -> None:
    manifest = bundle.seal(sample_content())
    manifest["quality"]["outputs"][0]["sqnr_db"] = "-inf"
    assert errors(manifest) == []


def test_documentation_shows_what_is_written() -> None:
    (example,) = re.findall(r"```json\n(\{\n  \"schema\": \"edgeopt\.bundle/1\".*?)```", DOCS.read_text(), re.DOTALL)
    assert json.loads(example) == bundle.seal(sample_content())


def test_documentation_names_every_key_and_every_file() -> None:
    text = DOCS.read_text()
    keys = set(SCHEMA["properties"])
    assert sorted(key for key in keys if f"| `{key}`" not in text) == []
    content = sample_content()
    names = {*content.record_files, "bench.pyz", "manifest.json", "SHA256SUMS", "RECORDS.sha256", "model/", "golden/"}
    names = {"measurements/" if name.startswith("measurements/") else name for name in names}
    assert sorted(name for name in names if f"| `{name}" not in text) == []
