"""The command: every network with every tool, then timing, then the bars."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from _peers import bars, checks, environments, making, page, stages, timing
from _peers.networks import FLOAT, OPENVINO, ORT, TOOLS, Network, networks
from _peers.records import Json, Records, sha256, write
from _peers.stages import OURS, Made, Place

ERRORS = {"centerface": ("537",)}
"""Outputs whose largest error stands in the table."""

RESULTS = "results.json"
"""In the folder of records: what ``--from`` reads."""

RATIO_SECONDS = 25.0
"""At most, of a measurement that a bar looks at, where not a few percent decide."""

LONGER = 5
"""So many times the seconds takes a measurement anew where a bar asks for parity and the interval leaves it open. The
longer one counts, whatever it says."""

BRIEF = ("quick", 12.0)
"""Effort and seconds, at most, of a measurement for the table alone."""


def main(arguments: list[str], usage: str) -> int:
    """Exit code: 1 when a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="scripts/compare_peers", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = networks("dev")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=list(known), help=f"one of {', '.join(known)}"
    )
    parser.add_argument("--runtime", choices=(ORT, OPENVINO), help="leave the other one out")
    parser.add_argument("--final", action="store_true", help="judge the photos on the ten held ones")
    parser.add_argument("--effort", default="standard", help="of the measurements; none leaves them out")
    parser.add_argument(
        "--seconds",
        type=float,
        default=80.0,
        metavar="N",
        help="bound for a measurement where a few percent decide; the others take less; default: 80",
    )
    parser.add_argument("--peers-only", action="store_true", help="edgeopt builds nothing")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where scripts/zoo put the networks")
    parser.add_argument("--records", type=Path, metavar="DIR", help="keep results here, and go on from them")
    parser.add_argument("--from", dest="kept", type=Path, metavar="DIR", help="run nothing, read its results.json")
    parser.add_argument("--bars", type=Path, default=bars.FILE, metavar="FILE", help="what must be reached")
    parser.add_argument("--write", action="store_true", help="write docs/peers.md and docs/peers.json")
    options = parser.parse_args(arguments)
    wanted = bars.load(options.bars)
    half = half_of(options)
    chosen = {name: one for name, one in networks(half).items() if name in (options.only or known)}
    if options.kept is not None:
        results = taken(options.kept / RESULTS, half, chosen)
    else:
        from _zoo.main import default_cache

        zoo = default_cache(options.cache)
        cache = zoo.parent / "peers"
        place = Place(models=zoo / "models", cache=cache, records=Records(options.records or cache / "records"))
        absent = [name for name, one in chosen.items() if not (place.models / name / one.model).is_file()]
        if absent:
            parser.error(f"not in {place.models}: {', '.join(absent)}; run scripts/zoo first")
        try:
            results = compare(place, chosen, options, wanted)
        except environments.PinnedError as error:
            parser.error(str(error))
        keep(place.records.folder / RESULTS, results)
    verdicts = bars.judge(results, wanted, chosen)
    print(page.figures_table(results))
    print()
    print(page.verdict_table(verdicts))
    if options.write:
        page.write(results, verdicts)
    missed = sum(not verdict.good for verdict in verdicts)
    print(f"{len(verdicts) - missed} of {len(verdicts)} bars are reached")
    return int(missed > 0 or not verdicts)


def taken(file: Path, half: str, chosen: dict[str, Network]) -> Json:
    """The results of earlier runs, of these networks.

    Raises:
        SystemExit: there are none, or they were judged on other photos.
    """
    if not file.is_file():
        raise SystemExit(f"{file} is not there: no run has come to its end with these records")
    results: Json = json.loads(file.read_text(encoding="utf-8"))
    if results["half"] != half:
        raise SystemExit(f"{file} was judged on the photos of {results['half']!r}")
    return {**results, "networks": {name: results["networks"][name] for name in chosen if name in results["networks"]}}


def keep(file: Path, results: Json) -> None:
    """Put results beside those that earlier runs have of other networks, in the order of the table."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"half": None, "networks": {}}
    merged = dict(results["networks"])
    if before["half"] == results["half"]:
        merged = {**before["networks"], **merged}
    ordered = {name: merged[name] for name in networks("dev") if name in merged}
    write(file, {**results, "machine": results["machine"] or before.get("machine"), "networks": ordered})


def compare(place: Place, chosen: dict[str, Network], options: argparse.Namespace, wanted: list[bars.Json]) -> Json:
    """Build and judge everything, then measure: nothing else runs beside a measurement.

    What no bar looks at comes last. After every measurement the results so far are kept, for ``--from``.
    """
    found: dict[str, Json] = {}
    models: dict[str, dict[tuple[str, str], Made]] = {}
    for name, network in chosen.items():
        found[name], models[name] = rows_of(place, name, network, options)
    pairs = {name: list(pairs_of(name, network, models[name], options, wanted)) for name, network in chosen.items()}
    queue = [(name, pair) for name, own in pairs.items() for pair in own]
    queue.sort(key=lambda one: not one[1].decides)
    done: dict[tuple[str, Pair], Json] = {}
    minutes = sum(pair.seconds for _, pair in queue) / 60
    say(f"{len(queue)} measurements of at most {minutes:.0f} minutes together, less those that the records have")
    for number, (name, pair) in enumerate(queue, 1):
        what = f"{pair.a} against {pair.b} in {pair.runtime}"
        say(f"{number} of {len(queue)}: {name}: {what}, {pair.seconds:g} s at most")
        sides = models[name][pair.a, pair.runtime], models[name][pair.b, pair.runtime]
        measured = timing.compared(place, name, chosen[name], what, *sides, pair.effort, pair.seconds)
        if pair.close and left_open(measured):
            say(f"left open: measured anew, {LONGER * pair.seconds:g} s at most")
            again = f"{what} at length"
            measured = timing.compared(place, name, chosen[name], again, *sides, pair.effort, LONGER * pair.seconds)
        done[name, pair] = {"a": pair.a, "b": pair.b, "runtime": pair.runtime, **measured}
        for each, own in pairs.items():
            found[each]["comparisons"] = [done[each, pair] for pair in own if (each, pair) in done]
        keep(place.records.folder / RESULTS, told(found, options))
    for one in found.values():
        one.setdefault("comparisons", [])
    return told(found, options)


def left_open(measured: Json) -> bool:
    """Whether a ratio may be 1 as well as more than what is allowed."""
    ratio = measured.get("latency")
    return bool(ratio) and ratio["low"] is not None and ratio["low"] <= 1 and ratio["high"] > checks.ENDS_WITHIN


def told(found: dict[str, Json], options: argparse.Namespace) -> Json:
    """The results, with the machine of the first measurement."""
    machines = [one["machine"] for network in found.values() for one in network["comparisons"] if "machine" in one]
    return {
        "schema": "edgeopt.peers/1",
        "half": half_of(options),
        "effort": options.effort,
        "machine": machines[0] if machines else None,
        "networks": found,
    }


def half_of(options: argparse.Namespace) -> str:
    """Which ten photos judge."""
    return "final" if options.final else "dev"


def say(text: str) -> None:
    print(f"[peers] {text}", file=sys.stderr, flush=True)


def built(
    place: Place, name: str, network: Network, options: argparse.Namespace
) -> Iterator[tuple[str, str | None, Json]]:
    """(tool, runtime, record) of every model; peers' models are for each runtime that takes their form (None)."""
    yield FLOAT, None, _or_error(functools.partial(making.floating, place, name, network))
    for tool in network.tools:
        say(f"{name}: {tool}")
        yield tool, None, _or_error(functools.partial(making.peer, place, name, network, tool))
    for runtime in () if options.peers_only else runtimes(network, options):
        for title, how in network.builds.items():
            say(f"{name}: edgeopt {title} for {runtime}")
            yield f"{OURS} {title}", runtime, making.build(place, name, network, title, how, runtime)


def _or_error(make: Callable[[], Json]) -> Json:
    try:
        return make()
    except RuntimeError as error:
        return {"error": str(error)}


def runtimes(network: Network, options: argparse.Namespace) -> list[str]:
    return [runtime for runtime in network.runtimes if options.runtime in (None, runtime)]


def rows_of(
    place: Place, name: str, network: Network, options: argparse.Namespace
) -> tuple[Json, dict[tuple[str, str], Made]]:
    """The network's rows, judged, and its models by tool and runtime."""
    rows: list[Json] = []
    models: dict[tuple[str, str], Made] = {}
    original = place.models / name / network.model
    records = list(built(place, name, network, options))
    reference = original
    if network.needs_torch:  # what edgeopt makes of it in float stands for it
        reference = next((Path(r["float"]) for _, _, r in records if "float" in r), original)
    for tool, only, record in records:
        for runtime in (only,) if only else every_runtime(network, tool, options):
            row: Json = {"tool": tool, "runtime": runtime, "build": {k: v for k, v in record.items() if k not in OWN}}
            rows.append(row)
            if tool == FLOAT and network.needs_torch:
                record = next((r for _, _, r in records if "float" in r), {"error": "no runtime runs it as it is"})
            try:
                model = making.made(place, name, network, tool, runtime, record)
            except RuntimeError as error:
                row["error"] = str(error)
                continue
            if tool.startswith(OURS) and not network.builds[tool.removeprefix(f"{OURS} ")].judged:
                continue
            models[tool, runtime] = model
            row["build"] = {**row["build"], "bytes": model.bytes}
            row["quality"] = judged(place, name, network, tool, runtime, model, reference, half_of(options))
            if "error" in row["quality"]:
                row["error"] = row["quality"]["error"]
    size = original.stat().st_size if original.is_file() else 0
    return {"title": network.title, "float_bytes": size, "rows": rows, "error_of": ERRORS.get(name, ())}, models


OWN = ("path", "bundle", "float", "tool", "error", "options")
"""Parts of a record that are of no use elsewhere."""


def every_runtime(network: Network, tool: str, options: argparse.Namespace) -> list[str]:
    """Where a peer's model is judged: OpenVINO's form in OpenVINO alone, also for networks not compared there."""
    form = TOOLS[tool].suffix if tool in TOOLS else ".onnx"
    if form == ".xml":
        return [OPENVINO] if options.runtime in (None, OPENVINO) else []
    return runtimes(network, options)


def judged(
    place: Place, name: str, network: Network, tool: str, runtime: str, model: Made, reference: Path, half: str
) -> Json:
    """The quality of one model in one runtime."""
    job = {
        "model": str(reference),
        "shapes": {} if network.needs_torch else {key: list(dims) for key, dims in network.shapes.items()},
        "sets": network.sets,
        "folder": str(place.models / name),
        "models": {tool: {"runtime": runtime, "path": str(model.path), "options": dict(model.options)}},
    }

    def make() -> Json:
        say(f"{name}: judging {tool} in {runtime}")
        found = stages.ask_judge(place, name, f"judge {tool} {runtime}", job)
        return found if "error" in found else found["models"][tool]

    title = f"{name}/{tool}/{runtime} {half}"
    sets = sorted((place.models / name).glob("*.toml"))
    key = {
        "files": sha256(*model.files),
        "sets": [network.sets, sha256(reference, *sets), place.stamp(name)],
        "options": dict(model.options),
        "judge": sha256(*(stages.HERE / f"{part}.py" for part in ("judge", "figures", "answers", "macs", "running"))),
    }
    return place.records.get(title, key, make)


class Pair(NamedTuple):
    """Two tools whose models are measured in alternation, and for how long.

    ``decides``: a bar looks at it; ``close``: and asks whether B takes no more than A.
    """

    a: str
    b: str
    runtime: str
    decides: bool
    close: bool
    effort: str
    seconds: float


def pairs_of(
    name: str,
    network: Network,
    models: dict[tuple[str, str], Made],
    options: argparse.Namespace,
    wanted: list[bars.Json],
) -> Iterator[Pair]:
    """Every tool against edgeopt's first build, the float original against all builds, the builds among themselves."""
    if options.effort == "none":
        return
    for runtime in runtimes(network, options):
        ours = [tool for tool, where in models if tool.startswith(OURS) and where == runtime]
        others = [tool for tool, where in models if not tool.startswith(OURS) and where == runtime]
        pairs = [(tool, ours[0]) for tool in others] if ours else []
        pairs += [(FLOAT, build) for build in ours[1:] if FLOAT in others]
        pairs += [(ours[0], build) for build in ours[1:]]
        for a, b in pairs:
            asked = bars.decides(wanted, name, a, b, runtime)
            effort, most = {
                bars.PARITY: (options.effort, options.seconds),
                bars.RATIO: (options.effort, RATIO_SECONDS),
            }.get(asked or "", BRIEF)
            yield Pair(a, b, runtime, asked is not None, asked == bars.PARITY, effort, min(most, options.seconds))
