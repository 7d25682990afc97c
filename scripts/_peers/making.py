"""The models of a comparison: those of the peers and of edgeopt, in the forms that the runtimes take."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from _peers import environments
from _peers.networks import FLOAT, OPENVINO, TOOLS, Build, Network
from _peers.records import Json, Records, sha256, slug
from _peers.stages import (
    HERE,
    OURS,
    ROOT,
    TARGETS,
    Made,
    Place,
    ask_judge,
    child,
    last_json,
    shape,
    size,
    source_digest,
    why,
    with_torch,
)


def calibration(place: Place, name: str, network: Network) -> Path:
    """The folder of calibration samples, as the peers read them.

    Raises:
        RuntimeError: they cannot be written.
    """
    folder = place.work(name) / "samples"
    toml = place.models / name / "calib.toml"
    key = {"set": sha256(toml, place.models / name / network.model), "stamp": place.stamp(name)}

    def make() -> Json:
        shutil.rmtree(folder, ignore_errors=True)
        job = {
            "model": str(place.models / name / network.model),
            "shapes": dict(network.shapes),
            "set": str(toml),
            "export": str(folder),
        }
        return {**ask_judge(place, name, "export", job), "folder": str(folder)}

    kept = Records(place.work(name)).get("samples-made", key, make, "folder")
    if "error" in kept:
        raise RuntimeError(f"{name}: the calibration set cannot be exported: {kept.get('error')}")
    return folder


def prepared(place: Place, name: str, network: Network, *, fuse: bool) -> Path:
    """The float network with its shapes fixed, or after edgeopt's rewrites too.

    Raises:
        RuntimeError: edgeopt cannot write it.
    """
    out = place.work(name) / ("fused.onnx" if fuse else "fixed.onnx")
    shapes = {key: list(dims) for key, dims in network.shapes.items()}
    job = {"model": str(place.models / name / network.model), "shapes": shapes, "save": str(out), "fuse": fuse}
    key = {"model": sha256(Path(job["model"])), "edgeopt": source_digest(), "shapes": shapes}

    def make() -> Json:
        return {**ask_judge(place, name, f"save {out.stem}", job), "path": str(out)}

    told = Records(place.work(name)).get(f"{out.stem}-made", key, make, "path")
    if "error" in told:
        raise RuntimeError(f"{name}: {told['error']}")
    return out


def peer(place: Place, name: str, network: Network, tool: str) -> Json:
    """A peer's model: ``{"path", "bytes", "seconds", "peak_bytes", "steps"}``, or ``{"error"}`` with the rest.

    Raises:
        RuntimeError: what it shall read cannot be made.
    """
    how, work = TOOLS[tool], place.work(name) / slug(tool)
    out = work / f"model{how.suffix}"
    script = HERE / how.script
    source = prepared(place, name, network, fuse=True) if how.fused else place.models / name / network.model
    key = {
        "model": sha256(source, place.models / name / "calib.toml"),
        "stamp": place.stamp(name),
        "tool": dataclasses.asdict(how),
        "script": sha256(script, HERE / "with_onnxruntime.py"),
        "environment": environments.digest(how.environment),
        "network": [dict(network.shapes), network.opset, network.transformer],
    }

    def make() -> Json:
        python = environments.python_of(how.environment, place.cache)
        work.mkdir(parents=True, exist_ok=True)
        for old in work.glob("model.*"):
            old.unlink()
        job = {
            "model": str(source),
            "samples": None if how.method.startswith("dynamic") else str(calibration(place, name, network)),
            "out": str(out),
            "method": how.method,
            "shapes": dict(network.shapes),
            "opset": network.opset,
            "transformer": network.transformer,
        }
        (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
        done = child([python, script, work / "job.json"], work)
        told = {"seconds": done.seconds, "peak_bytes": done.peak_bytes}
        if done.code or not out.is_file():
            return {**told, "error": why(done)}
        return {**told, "path": str(out), "bytes": size(out), "steps": last_json(done)["steps"]}

    return place.records.get(f"{name}/{tool}/build", key, make, "path")


def build(place: Place, name: str, network: Network, title: str, how: Build, runtime: str) -> Json:
    """One ``edgeopt build``, watched; what its bundle ships, and its own account of time."""
    work = place.work(name) / slug(f"edgeopt {title} {runtime}")
    bundle = work / "bundle"
    model = place.models / name / network.model
    shapes = [word for key, dims in network.shapes.items() for word in ("--shape", shape(key, dims))]
    words = [network.model, *TARGETS[runtime], *how.options, "--eval", network.evaluate, *shapes, "--effort", "quick"]
    key = {
        "model": sha256(model, *sorted(model.parent.glob("*.toml"))),
        "stamp": place.stamp(name),
        "words": words,
        "edgeopt": source_digest(),
        "environment": environments.digest("edgeopt"),
    }

    def make() -> Json:
        shutil.rmtree(work, ignore_errors=True)
        python = with_torch() if network.needs_torch else environments.python_of("edgeopt", place.cache)
        if python is None:
            return {"error": "no Python with torch here: run ./scripts/test once"}
        given = [ROOT / word if word in TARGETS[OPENVINO][1:] else word for word in words]
        command = [python, "-m", "edgeopt", "build", *given, "-o", bundle, "--quiet"]
        done = child(command, work, ROOT, cwd=model.parent)
        told = {"seconds": done.seconds, "peak_bytes": done.peak_bytes, "words": words}
        if done.code:
            return {**told, "error": why(done)}
        return {**told, **account(bundle)}

    return place.records.get(f"{name}/edgeopt {title} {runtime}/build", key, make, "path")


def account(bundle: Path) -> Json:
    """What a bundle says of itself: its artifacts, the one it ships, the seconds that its steps took."""
    from runtime_bench import manifest as manifests

    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    report = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    contract = manifests.parse(manifest)
    kinds: dict[str, float] = {}
    for step in report["steps"]:
        kinds[step["kind"]] = kinds.get(step["kind"], 0.0) + float(step.get("seconds") or 0.0)
    artifacts = sorted(manifest["artifacts"], key=lambda one: one["role"] != "default")
    shipped = next(one for one in artifacts if one["path"] == manifest["default_artifact"])
    chosen = next((one for one in artifacts if one["precision"] != "float32"), shipped)
    plain = next((one for one in artifacts if one["precision"] == "float32"), shipped)
    native = contract.native[chosen["path"]].options if chosen["path"] in contract.native else {}
    return {
        "bundle": str(bundle),
        "precision": chosen["precision"],
        "ships": shipped["precision"],
        "path": str(bundle / chosen["path"]),
        "float": str(bundle / plain["path"]),
        "bytes": chosen["bytes"],
        "options": {**contract.options, **native},
        "step_seconds": kinds,
        "warnings": list(report["verdict"]["warnings"]),
        "not_kept": [
            {"name": step["name"], "reason": step["reason"]} for step in report["steps"] if step["status"] != "kept"
        ],
    }


def to_openvino(place: Place, name: str, network: Network, what: str, path: Path) -> Made:
    """An ONNX file in OpenVINO's own form, weights as they are.

    Raises:
        RuntimeError: OpenVINO does not read it.
    """
    folder = place.work(name) / slug(f"{what} in openvino")
    out = folder / "model.xml"
    script = (
        "import json, sys, openvino as ov\n"
        "source, out, shapes = sys.argv[1:]\n"
        "model = ov.Core().read_model(source)\n"
        "shapes = json.loads(shapes)\n"
        "shapes and model.reshape({n: ov.PartialShape(s) for n, s in shapes.items()})\n"
        "ov.save_model(model, out, compress_to_fp16=False)\n"
    )

    def make() -> Json:
        python = environments.python_of("edgeopt", place.cache)
        shapes = json.dumps({key: list(dims) for key, dims in network.shapes.items()})
        done = child([python, "-c", script, path, out, shapes], folder)
        return {"error": why(done)} if done.code else {"path": str(out)}

    kept = Records(place.work(name)).get(f"{what} in openvino", {"source": sha256(path)}, make, "path")
    if "error" in kept:
        raise RuntimeError(kept["error"])
    return Made(path=out, source=str(out), bytes=size(out))


def made(place: Place, name: str, network: Network, tool: str, runtime: str, record: Json) -> Made:
    """A record's model for a runtime.

    Raises:
        RuntimeError: the tool failed, or the runtime does not take its form.
    """
    if "error" in record:
        raise RuntimeError(record["error"])
    if tool == FLOAT and network.needs_torch:
        path = Path(record["float"])
        return Made(path=path, source=f"{record['bundle']}#float32", bytes=size(path), options=record["options"])
    path = Path(record["path"])
    if tool.startswith(OURS):
        return Made(
            path=path,
            source=f"{record['bundle']}#{record['precision']}",
            bytes=record["bytes"],
            options=record["options"],
        )
    if runtime == OPENVINO and path.suffix == ".onnx":
        return to_openvino(place, name, network, tool, path)
    return Made(path=path, source=str(path), bytes=size(path))


def floating(place: Place, name: str, network: Network) -> Json:
    """The float original as it came; one whose shapes have to be fixed is written anew with those."""
    path = place.models / name / network.model
    runs = path if network.needs_torch or not network.shapes else prepared(place, name, network, fuse=False)
    return {"path": str(runs), "bytes": path.stat().st_size, "tool": FLOAT}
