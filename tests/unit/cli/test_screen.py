"""The screen after a build: first what a person needs first, and nothing looks measured that was not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeopt.cli._screen import quality_text, show
from edgeopt.report.summary import summary
from tests.unit.report import fixture

Json = dict[str, Any]
Shown = Callable[..., str]
ROOT = Path("out dir")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """``shown(manifest, diary, measurements, width=None)``: stderr of ``show``."""

    def run(manifest: Json, diary: list[Json], measurements: dict[str, Json], width: int | None = None) -> str:
        monkeypatch.setenv("COLUMNS", str(width or ""))
        show(manifest, summary(manifest, diary, measurements), ROOT)
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return run


def rows(screen: str) -> dict[str, str]:
    lines = [line for line in screen.splitlines() if "  " in line]
    return {name.strip(): value.strip() for name, value in (line.split("  ", 1) for line in lines)}


def test_the_order_is_that_of_the_questions(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.build()
    made["verdict"]["warnings"] = ["the set is small"]
    screen = shown(made, diary, measurements)
    found = [line.split("  ")[0] for line in screen.splitlines() if line]
    order = ["ships", "size", "latency", "stability", "memory", "quality", "budget", "not measured", "warning", "model"]
    order += ["kept", "rolled back", "report", "next"]
    assert [found.index(name) for name in order] == sorted(found.index(name) for name in order)
    said = rows(screen)
    assert said["ships"] == "int8, 5.1 MB: out dir/model/efficientnet-lite0.int8.onnx"
    assert said["size"] == "3.7x smaller than model.onnx (18.6 MB)"
    assert "x the time of the float32 (95 % interval 0." in said["latency"]
    assert said["latency"].endswith("): faster")
    assert "less than the float32" in said["memory"]
    assert said["not measured"].startswith("on raspberry-pi-5: latency and memory are those of this build host, AMD")
    assert said["next"].endswith(
        "to the device and run there: python3 bench.pyz verify && python3 bench.pyz --json out.json"
    )


def test_a_percentile_that_no_model_has_is_no_column(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.build()
    head = next(line for line in shown(made, diary, measurements).splitlines() if line.startswith("model "))
    assert "p95" in head
    assert "p99" not in head
    made, diary, measurements, _ = fixture.release()
    head = next(line for line in shown(made, diary, measurements).splitlines() if line.startswith("model "))
    assert "p99" in head


def test_what_was_not_measured_is_not_in_the_table(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.unmeasured()
    made["measured_on"]["note"] = "latency and memory were not measured"
    screen = shown(made, diary, measurements)
    said = rows(screen)
    assert (said["latency"], said["memory"]) == ("not measured", "not measured")
    assert said["quality"].startswith("not verified")
    assert said["not measured"] == "latency and memory, here or on the device (--effort none)"
    assert "median" not in screen
    assert "host" not in screen


def test_the_grade_stands_in_one_line_with_its_reason_and_advice(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.build()
    assert rows(shown(made, diary, measurements))["stability"] == "stable"
    measurements["build"]["environment"]["load1"] = 9.0
    assert rows(shown(made, diary, measurements))["stability"] == (
        "noisy: load average 9.0 on 2 CPUs: other work ran meanwhile: stop it, or wait until it is done"
    )
    for process in measurements["build"]["subjects"][1]["processes"]:
        process["steady_ns"] = [int(v * (1 + 0.5 * (k % 3))) for k, v in enumerate(process["steady_ns"])]
    told = rows(shown(made, diary, measurements))["stability"]
    assert told.startswith(("noisy: ", "unstable: "))
    assert told.endswith("in the report)")


def test_nothing_is_graded_that_was_not_measured(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.unmeasured()
    assert "stability" not in rows(shown(made, diary, measurements))


def test_a_budget_line_that_does_not_hold_says_so(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.build()
    made["budget"]["checked"] = [
        {"name": "memory", "limit": 64e6, "measured": 34e6, "ok": True},
        {"name": "p95", "limit": 1.0, "measured": 2.5, "ok": False},
        {"name": "p99", "limit": 1.0, "measured": None, "ok": False},
        {"name": "drop", "limit": 0.01, "measured": 0.0075, "ok": True},
    ]
    found = [
        line.split("  ", 1)[1].strip() for line in shown(made, diary, measurements).splitlines() if "budget" in line
    ]
    assert found == [
        "memory: 34.0 MB of 64.0 MB",
        "p95: 2.5 ms of 1 ms, OVER",
        "p99: not measured of 1 ms, OVER",
        "drop: 0.75% of 1.00%",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_is_wider_than_the_terminal(shown: Shown, width: int) -> None:
    made, diary, measurements, _ = fixture.build()
    assert max(map(len, shown(made, diary, measurements, width=width).splitlines())) <= width


def test_the_host_is_verified_where_it_is(shown: Shown) -> None:
    made, diary, measurements, _ = fixture.release()
    made["target"]["name"] = "host"
    said = rows(shown(made, diary, measurements))
    assert said["next"] == "edgeopt verify 'out dir'"
    assert said["measured"] == "on this machine, Raspberry Pi 5 Model B Rev 1.0"


def test_quality_in_one_line() -> None:
    quality = copy.deepcopy(fixture.manifest()["quality"])
    quality["metric"]["half_width"] = 0.0062
    assert quality_text(quality) == (
        "top1 89.75%, float 90.50% (0.75 +- 0.62 points lost); 97.00% of the answers as in float; SQNR 17.2 dB "
        "(400 samples of imagenette crops (evaluation part))"
    )
    quality["metric"].update(drop=-0.0075, half_width=None)
    quality["outputs"] = [{"sqnr_db": None}]
    quality["agreement"] = None
    assert "(0.75 points gained); outputs identical (400" in quality_text(quality)
    quality["outputs"].append({"sqnr_db": "-inf"})
    assert "SQNR -inf dB" in quality_text(quality)
    quality["metric"] = {"name": "Pearson", "float": 0.66, "artifact": 0.65375, "drop": 0.00625, "unit": "index"}
    quality["metric"]["half_width"] = 0.0012
    assert quality_text(quality).startswith("Pearson 0.6538, float 0.6600 (0.0063 +- 0.0012 lost); ")
    quality["verified"] = False
    assert quality_text(quality).startswith("not verified")
