"""What fusing is worth beside onnxruntime's own optimizations: nodes, latency, time to load, memory."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _page import put, table

from _zoo import builds
from _zoo.main import RECIPES, default_cache

PAGE = builds.ROOT / "docs" / "fusions.md"
TARGET = "host"
HEAD = (
    *("network", "nodes", "latency", "ratio (95 %)", "verdict", "load", "ratio (95 %)", "verdict"),
    *("peak memory", "ratio (95 %)"),
)
CONSTANT = ", weights constant"
PASS_HEAD = ("step", "what it does", "what for", "off")
Json = Mapping[str, Any]


def main(arguments: list[str], usage: str) -> int:
    """Exit code: 1 when a fused network is slower or loads more slowly, or cannot be built or measured."""
    parser = argparse.ArgumentParser(
        prog="scripts/fusions", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where scripts/zoo put the networks")
    parser.add_argument("--effort", default="standard", help="of the measurement; default: standard")
    parser.add_argument("--seconds", type=float, metavar="N", help="upper bound for each network")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--records", type=Path, metavar="DIR", help="keep the results here, one file a network")
    parser.add_argument("--from", dest="kept", type=Path, metavar="DIR", help="measure nothing, read kept results")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(builds.ROOT)}")
    options = parser.parse_args(arguments)
    if options.kept is not None:
        files = sorted(options.kept.glob("*.json"), key=place)
        results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    else:
        models = default_cache(options.cache) / "models"
        jobs = {
            job.network: job for job in reversed(list(builds.found_jobs(models, options.names or RECIPES, (TARGET,))))
        }
        results = []
        for name in options.names or RECIPES:
            if name in jobs:
                for result in measured(jobs[name], options):
                    results.append(result)
                    print(" | ".join(row(result)), file=sys.stderr, flush=True)
    if not results:
        parser.error("no network: run scripts/zoo first")
    text = table(HEAD, [row(result) for result in results])
    print(text)
    if options.write:
        put(PAGE, {"measured": f"{conditions(results)}\n\n{text}", "steps": table(PASS_HEAD, list(step_rows()))})
    failed = [name for result in results if (name := trouble(result))]
    print("\n".join(failed) or f"none of {len(results)} networks is slower or loads more slowly")
    return int(bool(failed))


def place(file: Path) -> int:
    """Order of the recipes."""
    names = list(RECIPES)
    stem = file.stem.removesuffix(CONSTANT)
    return 2 * (names.index(stem) if stem in names else len(names)) + (stem != file.stem)


def measured(job: builds.Job, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Build and compare one network; ``{"network", "nodes", "comparison"}``, or ``{"network", "error"}``.

    A network whose weights are also inputs is one that onnxruntime hardly optimizes, because a caller may override
    them. It is compared as it came and with its weights as constants.
    """
    from edgeopt import comparing, errors, loaders, model, passes
    from edgeopt.passes.drop_initializer_inputs import DROP_INITIALIZER_INPUTS

    with tempfile.TemporaryDirectory(prefix="edgeopt-fusions-") as scratch:
        job = uncalibrated(job)
        line, good = builds.run(job, Path(scratch), "none")
        if not good:
            yield {"network": job.network, "error": " ".join(line)}
            return
        bundle = builds.bundle_of(job, Path(scratch))
        report = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
        loaded = loaders.load(job.folder / job.source, shapes=builds.shapes(job))
        constant = passes.apply(DROP_INITIALIZER_INPUTS, loaded)
        candidates = [(job.network, loaded)]
        if constant.count:
            candidates.append((f"{job.network}{CONSTANT}", constant.model))
        for name, source in candidates:
            original = job.folder / job.source
            if original.suffix != ".onnx" or "--shape" in job.arguments or source is not loaded:
                original = Path(scratch) / "original.onnx"
                model.save(source, original)
            request = comparing.Request(
                a=original,
                b=Path(f"{bundle}#float32"),
                effort=options.effort,
                seconds=options.seconds,
                threads=options.threads,
            )
            try:
                comparison = comparing.run(request)
            except errors.EdgeoptError as error:
                yield {"network": name, "error": str(error)}
                continue
            result = {"network": name, "nodes": builds.nodes(report), "comparison": comparison}
            if options.records is not None:
                options.records.mkdir(parents=True, exist_ok=True)
                (options.records / f"{name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
            yield result


def uncalibrated(job: builds.Job) -> builds.Job:
    """The same build without a calibration set: nothing but the float network."""
    at = job.arguments.index("--calib")
    return dataclasses.replace(job, arguments=(*job.arguments[:at], *job.arguments[at + 2 :]))


def load_ratio(comparison: Json) -> tuple[Any, int, int]:
    """Time to load of fused over original, paired by round, and both medians in ns."""
    from runtime_bench.statistics import stats

    times: list[dict[int, int]] = []
    for subject in comparison["measurement"]["subjects"]:
        processes = enumerate(subject["processes"])
        times.append({p.get("round", i): p["phases_ns"]["load"] for i, p in processes if not p["error"]})
    rounds = sorted(times[0].keys() & times[1].keys())
    pairs = [(times[0][number], times[1][number]) for number in rounds]
    medians = [stats.percentile([pair[side] for pair in pairs], 0.5) for side in (0, 1)]
    return stats.log_interval([b / a for a, b in pairs]), medians[0], medians[1]


def row(result: Json) -> tuple[str, ...]:
    """A line of the table."""
    from runtime_bench.statistics import stats

    if "error" in result:
        return (result["network"], result["error"], *[""] * (len(HEAD) - 2))
    comparison = result["comparison"]
    latency, memory = comparison["latency"]["median"], comparison["memory"]["peak"]
    load, before, after = load_ratio(comparison)
    peaks = [memory[f"{side}_bytes"] for side in "ab"]
    return (
        result["network"],
        result["nodes"],
        f"{latency['a_ns'] / 1e6:.3g} -> {latency['b_ns'] / 1e6:.3g} ms",
        interval(latency["ratio"], latency["low"], latency["high"]),
        str(latency["verdict"]),
        f"{before / 1e6:.3g} -> {after / 1e6:.3g} ms",
        interval(*load[:3]),
        stats.verdict(load),
        "not measured" if None in peaks else f"{peaks[0] / 1e6:.1f} -> {peaks[1] / 1e6:.1f} MB",
        interval(memory["ratio"], memory["low"], memory["high"]),
    )


def interval(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def trouble(result: Json) -> str | None:
    """Why a network is not as it should be: slower in calls or in loading with the whole interval."""
    from runtime_bench.statistics import stats

    if "error" in result:
        return f"{result['network']}: {result['error']}"
    latency = result["comparison"]["latency"]["median"]["verdict"]
    load = stats.verdict(load_ratio(result["comparison"])[0])
    found = [what for what, verdict in (("is slower", latency), ("loads more slowly", load)) if verdict == "slower"]
    return f"{result['network']} {' and '.join(found)}" if found else None


def conditions(results: Sequence[Json]) -> str:
    """What the figures were measured on."""
    named = {result["network"]: result["comparison"]["a"] for result in results if "comparison" in result}
    if not named:
        return ""
    sides = list(named.values())
    side = sides[0]
    efforts: dict[str, list[str]] = {}
    for name, one in named.items():
        efforts.setdefault(one["effort"], []).append(name)
    usual, *others = sorted(efforts, key=lambda effort: -len(efforts[effort]))
    effort = f"`{usual}`" + "".join(f" (`{other}` for {', '.join(efforts[other])})" for other in others)
    machine, runtime = side["machine"], side["runtime"]
    counts = sorted({one["processes"] for one in sides})
    processes = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    threads = f"{side['threads']} thread{'s' if side['threads'] != 1 else ''}"
    return (
        f"{machine['cpu'] or machine['machine']}, {threads}, {runtime['name']} {runtime['version']}, "
        f"effort {effort}, {processes} processes of each in alternation."
    )


def step_rows() -> Iterator[tuple[str, ...]]:
    """Every rewrite in order: the first sentence of its file, its gain, and the profiles that it is off for."""
    from edgeopt import passes
    from edgeopt.pipeline.choose import choose_backend
    from edgeopt.target import list_targets, load_target

    profiles = [load_target(info.name) for info in list_targets()]
    backend = choose_backend(load_target(TARGET)).backend
    for one in (*passes.NORMALIZE, *passes.FUSIONS, *backend.passes(load_target(TARGET))):
        module = importlib.import_module(f"edgeopt.passes.{one.name.replace('-', '_')}")
        told = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
        yield f"`{one.name}`", told.replace("|", "\\|"), one.gain, off_for(one, profiles)


def off_for(one: Any, profiles: Sequence[Any]) -> str:
    """Profiles that a step refuses while it takes others, and why; on a network without nodes."""
    import onnx_ir as ir

    from edgeopt.model import Model, Origin

    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="empty")
    empty = Model(ir=ir.Model(graph, ir_version=10), origin=Origin(path=Path("empty.onnx"), format="onnx", files=()))
    reasons = {profile.name: one.refuses(empty, profile) for profile in profiles}
    taken = [name for name, reason in reasons.items() if reason is None]
    if not taken:
        return ""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason is not None:
            by_reason.setdefault(re.sub(rf"\b{re.escape(name)}\b", "it", reason), []).append(name)
    return "; ".join(f"{shortened(names, taken)}: {reason}" for reason, names in by_reason.items())


def shortened(names: Sequence[str], others: Sequence[str]) -> str:
    """Names of profiles; the ones that are left where those are fewer."""
    if len(names) <= len(others):
        return ", ".join(names)
    return f"{len(names)} profiles, not {', '.join(others)}"
