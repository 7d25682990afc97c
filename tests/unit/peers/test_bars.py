"""scripts/compare_peers: what must be reached is checked figure by figure, and a planted miss is exit code 1."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "low": value - 0.01, "high": value + 0.01}


def side(milliseconds: float) -> dict[str, Any]:
    return {"median_ns": milliseconds * 1e6, "p99_ns": 2 * milliseconds * 1e6, "memory_bytes": 20_000_000}


def comparison(a: str, b: str, runtime: str, latency: float, memory: float = 0.9) -> dict[str, Any]:
    sides = {"side_a": side(5.0), "side_b": side(5.0 * latency)}
    return {"a": a, "b": b, "runtime": runtime, "latency": ratio(latency), "memory": ratio(memory), **sides}


def build(**more: Any) -> dict[str, Any]:
    usual = {
        "seconds": 30.0,
        "peak_bytes": 400_000_000,
        "bytes": 5_000_000,
        "precision": "int8",
        "ships": "int8",
        "step_seconds": {"quantize": 12.0, "pass": 3.0},
        "warnings": [],
        "not_kept": [],
        "words": ["model.onnx"],
    }
    return {**usual, **more}


def seen(sqnr: float, metric: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    one: dict[str, Any] = {
        "samples": 4,
        "groups": None,
        "sqnr_db": {"y": sqnr},
        "largest_error": {"y": 0.1},
        "agreement": {"share": 0.95, "interval": [0.9, 1.0], "ties": 0},
        **more,
    }
    return one if metric is None else {**one, "metric": metric}


def quality(one: dict[str, Any], title: str = "set", float_macs: int = 0, **more: Any) -> dict[str, Any]:
    macs = {"total": 100, "integer": 100 - float_macs, "float": float_macs, "other": 0}
    return {"sets": {title: one, **more}, "macs": macs}


def top1(right: str = "1111", drop: float = 0.0, high: float = 0.002) -> dict[str, Any]:
    return {"name": "top-1", "float": 1.0, "value": 1.0, "drop": drop, "drop_interval": [-high, high], "right": right}


def simple(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "float": value, "value": value, "drop": 0.0}


def row(tool: str, judged: dict[str, Any], runtime: str = "onnxruntime", **more: Any) -> dict[str, Any]:
    ours = tool.startswith("edgeopt")
    return {
        "tool": tool,
        "runtime": runtime,
        "build": build(**more) if ours else {"bytes": 5_000_000},
        "quality": judged,
    }


def network(title: str, rows: list[Any], comparisons: list[Any], float_bytes: int = 18_000_000) -> dict[str, Any]:
    return {"title": title, "float_bytes": float_bytes, "rows": rows, "comparisons": comparisons, "error_of": []}


def everything() -> dict[str, Any]:
    """Results in which every bar is reached."""
    found: dict[str, Any] = {}
    rows, compared = [], []
    for runtime in ("onnxruntime", "openvino"):
        rows += [
            row("onnxruntime min-max", quality(seen(18.0, top1())), runtime),
            row("edgeopt int8", quality(seen(23.5, top1())), runtime),
            row("edgeopt 25 dB", quality(seen(25.5, top1()), float_macs=4), runtime),
            row("edgeopt 480 crops", {}, runtime, peak_bytes=410_000_000),
        ]
        compared += [
            comparison("float", "edgeopt int8", runtime, 0.5),
            comparison("onnxruntime min-max", "edgeopt int8", runtime, 0.95),
            comparison("NNCF on ONNX", "edgeopt int8", runtime, 1.005),
            comparison("edgeopt int8", "edgeopt 25 dB", runtime, 1.1),
        ]
    found["efficientnet-lite0"] = network("EfficientNet-Lite0", rows, compared)
    found["squeezenet"] = network(
        "SqueezeNet",
        [
            row("onnxruntime min-max", quality(seen(32.0, top1("1110")))),
            row("onnxruntime min-max, fused by edgeopt", quality(seen(32.0, top1("1101")))),
            row("edgeopt int8", quality(seen(34.5, top1()))),
        ],
        [
            comparison("float", "edgeopt int8", "onnxruntime", 0.5),
            comparison("onnxruntime min-max", "edgeopt int8", "onnxruntime", 0.99),
        ],
    )
    faces, heat = quality(seen(20.0, top1(), largest_error={"537": 0.14})), ratio(0.28)
    finer = quality(seen(20.0, top1(), largest_error={"537": 0.05}))
    found["centerface"] = network(
        "CenterFace",
        [row("edgeopt int8", faces), row("edgeopt heat 0.06", finer)],
        [
            {**comparison("float", "edgeopt int8", "onnxruntime", 0.28), "latency": heat},
            comparison("float", "edgeopt heat 0.06", "onnxruntime", 0.55),
        ],
    )
    for name, decibels in (("fashion-mnist", 38.5), ("fashion-mnist-depthwise", 34.2)):
        found[name] = network(
            name,
            [row("edgeopt int8", quality(seen(decibels, top1())), ships="float32")],
            [comparison("float", "edgeopt int8", "onnxruntime", 1.2)],
        )
    words, news = seen(20.0, simple("spearman", 0.725)), seen(20.0, simple("pearson", 0.651))
    found["minilm"] = network(
        "MiniLM",
        [
            row("edgeopt int8", quality(words, "wordsim353", Lee=news), bytes=23_000_000),
            row("edgeopt int4", quality(words, "wordsim353", Lee=news), bytes=14_900_000),
        ],
        [
            comparison("float", "edgeopt int8", "onnxruntime", 0.6),
            comparison("onnxruntime dynamic", "edgeopt int8", "onnxruntime", 1.0, 1.0),
            comparison("onnxruntime dynamic, per channel", "edgeopt int8", "onnxruntime", 0.9, 0.9),
        ],
    )
    rates = {"name": "character error rate", "float": [0.0, 0.004, 0.13], "value": [0.02, 0.012, 0.139], "drop": 0.02}
    found["ppocr-rec"] = network(
        "PP-OCR",
        [row("edgeopt int8", quality(seen(20.0, rates)))],
        [comparison("float", "edgeopt int8", "onnxruntime", 0.9)],
    )
    from _peers.networks import SILERO

    for name in SILERO:
        judged = quality(seen(30.0, simple("AUC", 0.926)))
        compared = [comparison("float", "edgeopt int8", "onnxruntime", 0.9)]
        found[name] = network(name, [row("edgeopt int8", judged, bytes=800_000)], compared, 2_300_000)
    return {"half": "dev", "effort": "standard", "machine": None, "networks": found}


def missed(results: dict[str, Any]) -> list[str]:
    from _peers import bars

    return [f"{v.network}: {v.wanted}" for v in bars.judge(results, bars.load(), results["networks"]) if not v.good]


def test_every_bar_can_be_reached() -> None:
    from _peers import bars

    verdicts = bars.judge(everything(), bars.load(), everything()["networks"])
    assert [v for v in verdicts if not v.good] == []
    assert len(verdicts) > 50


def of(results: dict[str, Any], name: str, tool: str = "edgeopt int8", runtime: str = "onnxruntime") -> dict[str, Any]:
    rows = results["networks"][name]["rows"]
    found: dict[str, Any] = next(r for r in rows if (r["tool"], r["runtime"]) == (tool, runtime))
    return found


def judged(results: dict[str, Any], name: str, tool: str = "edgeopt int8", runtime: str = "onnxruntime") -> Any:
    return next(iter(of(results, name, tool, runtime)["quality"]["sets"].values()))


def pair(results: dict[str, Any], name: str, a: str, b: str, runtime: str = "onnxruntime") -> dict[str, Any]:
    compared = results["networks"][name]["comparisons"]
    found: dict[str, Any] = next(c for c in compared if (c["a"], c["b"], c["runtime"]) == (a, b, runtime))
    return found


EFF = "efficientnet-lite0"
Plant = Callable[[dict[str, Any]], Any]
PLANTS: dict[str, tuple[Plant, str]] = {
    "sqnr": (lambda r: judged(r, EFF)["sqnr_db"].update(y=22.99), "EfficientNet-Lite0: SQNR >= 23 dB"),
    "one output of two": (lambda r: judged(r, EFF)["sqnr_db"].update(z=5.0), "EfficientNet-Lite0: SQNR >= 23 dB"),
    "sqnr in openvino": (
        lambda r: judged(r, EFF, runtime="openvino")["sqnr_db"].update(y=20.0),
        "EfficientNet-Lite0: SQNR >= 23 dB",
    ),
    "float": (
        lambda r: of(r, EFF)["quality"]["macs"].update(float=1),
        "EfficientNet-Lite0: multiplications in float <= 0%",
    ),
    "more float": (
        lambda r: of(r, EFF, "edgeopt 25 dB")["quality"]["macs"].update(float=6),
        "EfficientNet-Lite0: multiplications in float <= 5%",
    ),
    "slower than one peer": (
        lambda r: pair(r, EFF, "NNCF on ONNX", "edgeopt int8").update(latency=ratio(1.03)),
        "EfficientNet-Lite0: time <= 1.00 x peers",
    ),
    "a peer that was not measured": (
        lambda r: pair(r, EFF, "NNCF on ONNX", "edgeopt int8").pop("latency"),
        "EfficientNet-Lite0: time <= 1.00 x peers",
    ),
    "slow quantizer": (
        lambda r: of(r, EFF)["build"]["step_seconds"].update(quantize=20.5),
        "EfficientNet-Lite0: quantizing <= 20 s",
    ),
    "memory of the build": (
        lambda r: [one["build"].update(peak_bytes=510_000_000) for one in r["networks"][EFF]["rows"][1::2][:2]],
        "EfficientNet-Lite0: peak of the build <= 500,000,000 bytes",
    ),
    "memory grows": (
        lambda r: of(r, EFF, "edgeopt 480 crops")["build"].update(peak_bytes=421_000_000),
        "EfficientNet-Lite0: 480 crops: the build's peak within 5%",
    ),
    "no price": (
        lambda r: pair(r, EFF, "edgeopt int8", "edgeopt 25 dB").update(b="something"),
        "EfficientNet-Lite0: price over int8 shown",
    ),
    "agreement": (lambda r: judged(r, "squeezenet")["agreement"].update(share=0.929), "SqueezeNet: agreement >= 93%"),
    "fewer right": (
        lambda r: (
            judged(r, "squeezenet", "onnxruntime min-max")["metric"].update(right="1111" * 50),
            judged(r, "squeezenet", "onnxruntime min-max, fused by edgeopt")["metric"].update(right="1101" * 50),
            judged(r, "squeezenet")["metric"].update(right="1101" * 50),
        ),
        "SqueezeNet: top-1 not below onnxruntime min-max, paired",
    ),
    "heat": (
        lambda r: judged(r, "centerface")["largest_error"].update({"537": 0.151}),
        "CenterFace: largest error of 537 <= 0.15",
    ),
    "slow heat": (
        lambda r: pair(r, "centerface", "float", "edgeopt heat 0.06").update(latency=ratio(0.62)),
        "CenterFace: time <= 0.60 x float",
    ),
    "faces": (lambda r: judged(r, "centerface")["metric"].update(drop=0.01), "CenterFace: drop of the metric <= 0.00%"),
    "interval of the drop": (
        lambda r: judged(r, "fashion-mnist")["metric"].update(drop_interval=[0.0, 0.0051]),
        "fashion-mnist: interval of the drop below 0.5%",
    ),
    "words": (
        lambda r: of(r, "minilm")["quality"]["sets"].update(wordsim353=seen(20.0, simple("spearman", 0.7239))),
        "MiniLM: wordsim353 >= 0.724",
    ),
    "news": (
        lambda r: of(r, "minilm")["quality"]["sets"]["Lee"].update(metric=simple("pearson", 0.64)),
        "MiniLM: Lee >= 0.65",
    ),
    "size": (lambda r: of(r, "minilm")["build"].update(bytes=23_500_001), "MiniLM: size <= 23,500,000 bytes"),
    "heavier": (
        lambda r: pair(r, "minilm", "onnxruntime dynamic", "edgeopt int8").update(memory=ratio(1.03)),
        "MiniLM: memory <= 1.00 x onnxruntime dynamic",
    ),
    "characters": (
        lambda r: judged(r, "ppocr-rec")["metric"].update(value=[0.0, 0.0, 0.141]),
        "PP-OCR: character error rate within 1% of float",
    ),
    "not faster": (
        lambda r: pair(r, "ppocr-rec", "float", "edgeopt int8").update(latency=ratio(0.995)),
        "PP-OCR: faster than float",
    ),
    "a form without a build": (
        lambda r: r["networks"]["silero-vad-torchscript"]["rows"][0].update(error="no torch"),
        "silero-vad-torchscript: {set} >= 0.925",
    ),
    "area": (
        lambda r: judged(r, "silero-vad-16k-sequence")["metric"].update(value=0.9249),
        "silero-vad-16k-sequence: {set} >= 0.925",
    ),
    "large file": (
        lambda r: of(r, "silero-vad")["build"].update(bytes=805_001),
        "silero-vad: size <= 0.35 x the original",
    ),
    "slower in silence": (
        lambda r: of(r, "fashion-mnist")["build"].update(ships="int8"),
        "fashion-mnist: said where int8 does not pay",
    ),
    "float that calls itself a build": (
        lambda r: of(r, "fashion-mnist")["build"].update(precision="float32"),
        "fashion-mnist: SQNR >= 38 dB",
    ),
    "not judged": (
        lambda r: of(r, "fashion-mnist").update(quality={"error": "gone"}),
        "fashion-mnist: SQNR >= 38 dB",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_miss_is_found(name: str) -> None:
    plant, expected = PLANTS[name]
    results = everything()
    plant(results)
    found = missed(results)
    assert expected.format(set="the metric") in found
    if name == "a form without a build":
        assert len(found) == 3
    elif name in ("float that calls itself a build", "not judged"):
        assert found == [expected, "fashion-mnist: interval of the drop below 0.5%"]
    else:
        assert set(found) == {expected.format(set="the metric")}


@pytest.mark.parametrize(
    ("low", "high", "good"),
    [(1.0, 1.03, True), (1.001, 1.01, False), (0.99, 1.031, False), (0.5, 0.6, True), (1.0, 1.0, True)],
)
def test_not_slower_is_an_interval_that_begins_at_the_limit_and_ends_near_it(
    low: float, high: float, good: bool
) -> None:
    from _peers import checks

    assert checks.not_above({"ratio": (low + high) / 2, "low": low, "high": high}, 1.0) is good
    assert checks.not_above({"ratio": 1, "low": 0.3 * low, "high": 0.3 * high}, 0.3) is good


def test_a_ratio_without_an_interval_decides_nothing() -> None:
    results = everything()
    pair(results, "minilm", "onnxruntime dynamic", "edgeopt int8")["latency"].update(low=None, high=None)
    assert missed(results) == ["MiniLM: time <= 1.00 x onnxruntime dynamic"]
    results = everything()
    pair(results, "fashion-mnist", "float", "edgeopt int8")["latency"].update(low=None, high=None)
    assert len(missed(results)) == 1
    assert missed(results)[0].endswith("said where int8 does not pay")


def test_a_network_that_is_missing_misses_its_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from _peers import main

    results = everything()
    del results["networks"]["ppocr-rec"]
    main.keep(tmp_path / main.RESULTS, results)
    assert main.main(["--from", str(tmp_path)], "usage") == 1
    assert (
        "| ppocr-rec | int8@onnxruntime | faster than float | was not compared | **missed** |"
        in capsys.readouterr().out
    )
    assert main.main(["--from", str(tmp_path), "--only", "minilm"], "usage") == 0


def test_a_slower_build_that_says_so_is_right() -> None:
    results = everything()
    step = {"name": "quantize-int8", "reason": "12 % slower than float on this machine"}
    of(results, "fashion-mnist")["build"].update(ships="int8", not_kept=[step])
    assert missed(results) == []


def test_bars_name_networks_builds_sets_and_outputs_that_are_there() -> None:
    from _peers import bars
    from _peers.networks import networks

    known = networks("final")
    for bar in bars.load():
        for name in known if bar["network"] == "*" else [bar["network"]]:
            one = known[name]
            for build_ in bar["builds"]:
                title, _, runtime = build_.partition("@")
                assert bar["network"] == "*" or (title in one.builds and runtime in one.runtimes)
            for check in bar["checks"]:
                assert check.get("set", next(iter(one.sets))) in one.sets
                assert check.get("than", "float") in ("float", "peers", *one.tools)
                assert check.get("of", "int8") in one.builds
                assert check.get("over", "int8") in one.builds
    assert {bar["network"] for bar in bars.load()} - {"*"} == set(known)


def test_comparisons_are_as_long_as_a_bar_needs_them() -> None:
    from _peers import bars

    wanted = bars.load()

    def asked(name: str, a: str, b: str, runtime: str = "onnxruntime") -> str | None:
        return bars.decides(wanted, name, a, b, runtime)

    for peer in ("NNCF on OpenVINO", "NNCF on OpenVINO, mixed", "onnxruntime min-max", "NNCF on ONNX"):
        assert asked("efficientnet-lite0", peer, "edgeopt int8", "openvino") == bars.PARITY
    assert asked("squeezenet", "onnxruntime min-max, fused by edgeopt", "edgeopt int8") == bars.PARITY
    assert asked("minilm", "onnxruntime dynamic", "edgeopt int8") == bars.PARITY
    assert asked("efficientnet-lite0", "edgeopt int8", "edgeopt 25 dB") == bars.RATIO
    assert asked("magika", "float", "edgeopt int8") == bars.RATIO
    assert asked("centerface", "float", "edgeopt heat 0.06") == bars.RATIO
    assert asked("squeezenet", "onnxruntime min-max", "edgeopt int8", "openvino") is None
    assert asked("efficientnet-lite0", "float", "edgeopt 25 dB") is None
    assert asked("minilm", "onnxruntime min-max", "edgeopt int8") is None


def test_an_unknown_kind_of_check_is_refused(tmp_path: Path) -> None:
    from _peers import bars

    file = tmp_path / "bars.toml"
    file.write_text('[[bar]]\nnetwork = "minilm"\nbuilds = ["int8@onnxruntime"]\nchecks = [{ kind = "speed" }]\n')
    with pytest.raises(ValueError, match="minilm: unknown kind 'speed'"):
        bars.load(file)


def test_the_exit_code_is_1_where_a_bar_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from _peers import main

    results = everything()
    main.keep(tmp_path / main.RESULTS, results)
    assert main.main(["--from", str(tmp_path)], "usage") == 0
    assert "**missed**" not in capsys.readouterr().out
    judged(results, "squeezenet")["sqnr_db"]["y"] = 33.9
    one = {**results, "networks": {"squeezenet": results["networks"]["squeezenet"]}}
    main.keep(tmp_path / main.RESULTS, one)  # a later run of one network takes its place beside the others
    assert main.main(["--from", str(tmp_path), "--only", "minilm"], "usage") == 0
    assert main.main(["--from", str(tmp_path)], "usage") == 1
    told = capsys.readouterr().out
    assert "| EfficientNet-Lite0 | int8@openvino | SQNR >= 23 dB | 23.50 dB | reached |" in told
    assert "| SqueezeNet | int8@onnxruntime | SQNR >= 34 dB | 33.90 dB | **missed** |" in told
    assert main.main(["--from", str(tmp_path), "--bars", str(nothing(tmp_path))], "usage") == 1
    with pytest.raises(SystemExit, match="judged on the photos of 'dev'"):
        main.main(["--from", str(tmp_path), "--final"], "usage")
    with pytest.raises(SystemExit, match="no run has come to its end"):
        main.main(["--from", str(tmp_path / "none")], "usage")


def nothing(folder: Path) -> Path:
    """Bars of which none applies: no check at all is no success."""
    file = folder / "none.toml"
    file.write_text('[[bar]]\nnetwork = "other"\nbuilds = []\nchecks = []\n')
    return file


def test_the_page_gets_its_tables_and_the_data_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from _peers import bars, page

    monkeypatch.setattr(page, "PAGE", tmp_path / "peers.md")
    monkeypatch.setattr(page, "DATA", tmp_path / "peers.json")
    parts = ("conditions", "figures", "verdicts", "steps")
    page.PAGE.write_text("\n\n".join(f"<!-- {part} -->\nold\n<!-- /{part} -->" for part in parts) + "\n")
    results = everything()
    assert results["half"] == "dev"
    results["networks"]["minilm"]["rows"].append(
        {"tool": "NNCF on ONNX", "runtime": "onnxruntime", "build": {}, "error": "a | b\nc"}
    )
    before = copy.deepcopy(results)
    page.write(results, bars.judge(results, bars.load(), results["networks"]))
    text = page.PAGE.read_text()
    assert "old" not in text
    assert json.loads(page.DATA.read_text()) == before
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (len(page.HEAD) + 1, len(page.VERDICT_HEAD) + 1) for line in lines)
    assert "**a \\| b c**" in text
    page.PAGE.write_text("nothing here")
    with pytest.raises(SystemExit, match="has no <!-- conditions -->"):
        page.write(results, [])
