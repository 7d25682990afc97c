from __future__ import annotations

import ast
import copy
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.report import render
from runtime_bench.judge.stability import derive

from . import fixture, recorded, svg
from .reading import walk, words

BUILDS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "build": fixture.build,
    "release": fixture.release,
    "troubled": fixture.troubled,
    "unmeasured": fixture.unmeasured,
    "hostile": fixture.hostile,
}
SECTIONS = ("stability", "latency", "memory", "steps", "placement", "quality", "environment", "contract")


@pytest.fixture(params=BUILDS)
def files(request: pytest.FixtureRequest) -> dict[str, bytes]:
    return render(*BUILDS[request.param]())


def test_the_page_is_well_formed_and_self_contained(files: dict[str, bytes]) -> None:
    page = walk(files["report.html"])
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & set(names)
    for _, attributes in page.tags:
        assert not [a for a in attributes if a.startswith("on") or a in ("src", "style", "xlink:href")]
        assert (attributes.get("href") or "#").startswith("#")
    source = files["report.html"].decode()
    style = source[source.index("<style>") : source.index("</style>")]
    for banned in ("http:", "https:", "url(", "@import", "//"):
        assert banned not in style
    ids = [a["id"] for _, a in page.tags if "id" in a]
    measured = "stability" in ids
    assert [name for name in ids if name != "budgets"] == list(SECTIONS if measured else SECTIONS[1:])
    assert measured == ("not measured" not in words(files["report.html"]).partition("Size")[0])
    links = [(a["href"] or "")[1:] for t, a in page.tags if t == "a"]
    assert set(links) <= set(ids)


def test_every_chart_is_finite_complete_and_legible(files: dict[str, bytes]) -> None:
    charts = svg.charts(files["report.html"].decode())
    assert charts
    assert not [fault for chart in charts for fault in svg.faults(chart)]
    assert "nan" not in re.findall(r"\bnan\b", files["report.html"].decode().lower())


def test_markdown_tables_have_as_many_cells_as_columns(files: dict[str, bytes]) -> None:
    for name in ("report.md", "README.md"):
        width = 0
        for line in files[name].decode().splitlines():
            if not line.startswith("|"):
                width = 0
                continue
            cells = len(re.sub(r"\\.", "", line).split("|")) - 2
            width = width or cells
            assert cells == width, line


def test_report_json_is_strict_and_names_its_schema(files: dict[str, bytes]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(files["report.json"], parse_constant=refuse)
    assert found["schema"] == "edgeopt.report/2"
    assert {"verdict", "size", "memory", "latency", "quality", "budget", "steps", "placement"} <= set(found)


def test_readme_tells_how_to_check_verify_measure_and_run(files: dict[str, bytes]) -> None:
    readme = files["README.md"].decode()
    for command in (
        "sha256sum -c SHA256SUMS",
        "python3 bench.pyz verify",
        "python3 bench.pyz --json out.json",
        'python3 -m pip install "onnxruntime>=1.17.0" numpy',
        "externally-managed-environment",
        "ort.InferenceSession(",
        "intra_op_num_threads = 4",
        "report.html",
    ):
        assert command in readme
    for block in re.findall(r"^```+python\n(.*?)^```+$", readme, flags=re.S | re.M):
        ast.parse(block)


def test_same_input_same_bytes() -> None:
    assert render(*fixture.build()) == render(*fixture.build())


def test_inputs_are_left_alone() -> None:
    given = fixture.build()
    before = copy.deepcopy(given)
    render(*given)
    assert given == before


def test_hostile_names_stay_text() -> None:
    files = render(*fixture.hostile())
    assert "<script>alert(1)</script>" in words(files["report.html"])
    for name in ("report.html", "report.md"):
        assert "<script" not in files[name].decode()
        assert "<img" not in files[name].decode()
    outside = re.sub(r"^```+(\w*)\n.*?^```+$", "", files["README.md"].decode(), flags=re.S | re.M)
    assert "<script" not in re.sub(r"(`+) .*? \1", "", outside)


def test_the_first_screen_says_what_was_won_and_where_it_was_measured() -> None:
    screen = words(render(*fixture.build())["report.html"]).partition("Budgets")[0]
    for part in (
        "int8: 3.7x smaller",
        "Not measured on the target. Latency and memory are from the build host (AMD EPYC 9R14",
        "18.6 MB → 5.07 MB",
        "97.0 % agree",
        "2.1x faster",
        "95 % interval",
        "on the build host",
        "38 % less than float32",
    ):
        assert part in screen


def test_headline_figures_equal_those_computed_by_hand() -> None:
    made, steps, measured, lines = fixture.build()
    found = json.loads(render(made, steps, measured, lines)["report.json"])
    pairs = {
        s["name"]: [sorted(p["steady_ns"])[len(p["steady_ns"]) // 2 - 1] for p in s["processes"]]
        for s in measured["build"]["subjects"]
    }
    logs = [math.log(b / a) for a, b in zip(pairs["float32"], pairs["int8"], strict=True)]
    half = 4.302653 * statistics.stdev(logs) / math.sqrt(3)  # t quantile 0.975 with 2 degrees of freedom
    center = statistics.fmean(logs)
    ratio = found["latency"]["ratio"]
    expected = [math.exp(v) for v in (center, center - half, center + half)]
    assert [ratio["ratio"], ratio["low"], ratio["high"]] == pytest.approx(expected, rel=1e-6)
    assert found["size"]["factor"] == pytest.approx(18_634_112 / 5_071_904)
    assert found["memory"]["int8"]["charged"] == 12_926_976 + 21_340_160
    assert found["latency"]["subjects"]["int8"]["p99_ns"] is None


def test_nan_is_refused() -> None:
    made, steps, measured, lines = fixture.build()
    made["quality"]["outputs"][0]["cosine"] = math.nan
    with pytest.raises(ValueError, match="JSON"):
        render(made, steps, measured, lines)


def test_the_readme_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both snippets, on a model that doubles its input, against values computed here."""
    from onnx import TensorProto, helper, save_model
    from PIL import Image

    made, steps, measured, lines = fixture.build()
    name = made["signature"]["inputs"][0]["name"] = 'it\'s "x"'
    node = helper.make_node("Add", [name, name], ["linear"])
    shape = [1, 3, 224, 224]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("linear", TensorProto.FLOAT, shape)],
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "golden").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    save_model(model, tmp_path / made["default_artifact"])
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "golden/000.input.0.npy", x)
    np.save(tmp_path / "golden/000.int8.0.npy", 2 * x + 1)
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    made["signature"]["inputs"][0]["preprocessing"]["resize"] = 224

    readme = render(made, steps, measured, lines)["README.md"].decode()
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in re.findall(r"^```+python\n(.*?)^```+$", readme, flags=re.S | re.M):
        exec(block.replace("photo.jpg", "photo.png"), space)
    assert capsys.readouterr().out == "(1, 3, 224, 224) 1.0\n"
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = 2 * ((pixels / 255 - mean) / std).transpose(2, 0, 1)[np.newaxis]
    np.testing.assert_allclose(space["outputs"][0], expected, rtol=1e-5, atol=1e-6)


def test_report_json_has_the_grade_and_every_summary() -> None:
    made, steps, measured, lines = fixture.troubled()
    derived = json.loads(json.dumps(derive(measured["release"])))
    measured["release"]["results"] = {"summaries": {}, "stability": {"grade": "stable", "subjects": {}, "reasons": []}}
    latency = json.loads(render(made, steps, measured, lines)["report.json"])["latency"]
    assert latency["stability"] == derived["stability"]  # from the raw samples, not from what the file says of itself
    assert latency["subjects"] == derived["summaries"]
    assert latency["load"]["kind"] == "periodic"
    assert latency["clock"] == {"overhead_ns": 41, "resolution_ns": 1}
    assert latency["affinity"] == [2]


def test_a_page_stays_small_however_many_calls_were_made() -> None:
    made, steps, _, lines = fixture.build()
    few, many = (
        len(render(made, steps, {"build": recorded.measurement(20, samples)}, lines)["report.html"])
        for samples in (100, 800)
    )
    assert many < 1.8 * few
    assert many < 400_000
