"""A build of EfficientNet-Lite0 for a Raspberry Pi 5 as the report sees it: made up, seeded, of realistic size."""

from __future__ import annotations

from .measured import timelines
from .recorded import Json, measurement
from .troubled import troubled as _troubled

FLOAT_BYTES, INT8_BYTES = 18_634_112, 5_071_904


def _footprint(weights: int, peak: int | None, nodes: int) -> Json:
    return {"weight_bytes": weights, "peak_activation_bytes": peak, "nodes": nodes}


def diary() -> list[Json]:
    """One row a step: passes, int8 kept, a finer scheme rolled back, a pass that did not apply."""
    raw = _footprint(18_634_560, 6_623_232, 111)
    folded = _footprint(18_524_040, 6_623_232, 94)
    int8 = _footprint(4_771_220, 2_107_392, 304)
    smaller = _footprint(4_655_004, 2_107_392, 304)
    refusal = "top-1 agreement with the float model is 71.50 %, more than 1.00 % below 100 %"
    finer = ("quantize", "per-tensor-weights", "one scale a tensor is smaller still")
    quantize = ("quantize", "static-int8", "memory first: weights and activations to a quarter")
    batchnorm = ("pass", "fuse-conv-batchnorm", "BatchNorm after Conv costs a pass over memory")
    constants = ("pass", "fold-constants", "17 pad chains hang on constants")
    timed = [0.4712, 0.4603, 0.4823]
    return [
        _row(constants, "kept", "17 folded", raw, folded, _drift(None, 1.0, 0.0), 0.31),
        _row(batchnorm, "skipped", "nothing to rewrite", folded, folded, [], 0.01),
        _row(("pass", "fuse-pad", ""), "kept", "17 Pad nodes into Conv", folded, folded, _drift(142.6, 1.0, 1e-6), 0.4),
        _row(quantize, "kept", "quality holds", folded, int8, _drift(23.94, 0.998, 1.37), 19.2, timed),
        _row(finer, "rolled-back", refusal, int8, smaller, _drift(6.81, 0.893, 9.72), 18.4),
    ]


def _drift(sqnr_db: float | None, cosine: float, max_abs: float) -> list[Json]:
    return [{"output": "linear", "sqnr_db": sqnr_db, "cosine": cosine, "max_abs": max_abs}]


def _row(
    step: tuple[str, str, str],
    status: str,
    reason: str,
    before: Json,
    after: Json,
    drift: list[Json],
    seconds: float,
    ratio: list[float] | None = None,
) -> Json:
    kind, name, why = step
    return {
        "step": {"kind": kind, "name": name, "params": {}, "why": why},
        "status": status,
        "reason": reason,
        "before": before,
        "after": after,
        "drift": drift,
        "latency_ratio": ratio,
        "seconds": seconds,
    }


def _placement() -> Json:
    nodes = [{"key": r["key"], "op": r["op"], "runs": "int8", "why": ""} for r in timelines()["float32"]][:-1]
    nodes.append(
        {"key": "classifier", "op": "Gemm", "runs": "float", "why": "its output is a graph output: kept unclipped"}
    )
    nodes += [{"key": f"blocks/clip.{k}", "op": "Clip", "runs": "fused", "why": ""} for k in range(33)]
    nodes += [
        {
            "key": f"head/reshape.{k}",
            "op": "Reshape",
            "runs": "float",
            "why": "moves data only: no integer kernel needed",
        }
        for k in range(2)
    ]
    count = {runs: sum(n["runs"] == runs for n in nodes) for runs in ("int8", "fused", "float")}
    return {**count, "nodes": nodes, "note": "as optimized on the host"}


def manifest() -> Json:
    """The manifest at the time of rendering: without files and identity."""
    measured = measurement()["subjects"]
    return {
        "schema": "edgeopt.bundle/1",
        "edgeopt": "0.1.0",
        "name": "efficientnet-lite0",
        "source": {"file": "model.onnx", "format": "onnx", "sha256": "c" * 64, "bytes": FLOAT_BYTES + 12_345},
        "target": {
            "name": "raspberry-pi-5",
            "description": "Raspberry Pi 5: 4x Cortex-A76 at 2.4 GHz",
            "backends": ["onnxruntime"],
            "arch": "aarch64",
            "isa": ["asimd", "asimddp", "fphp"],
            "threads": 4,
            "notes": [],
        },
        "backend": {"name": "onnxruntime", "preferred": "onnxruntime", "reason": ""},
        "signature": {
            "inputs": [
                {
                    "name": "inputs",
                    "dtype": "float32",
                    "shape": [1, 3, 224, 224],
                    "layout": "NCHW",
                    "preprocessing": {
                        "formula": "(raw * scale - mean) / std",
                        "scale": 1 / 255,
                        "mean": [0.485, 0.456, 0.406],
                        "std": [0.229, 0.224, 0.225],
                        "color": "rgb",
                        "resize": 256,
                        "crop": [224, 224],
                        "interpolation": "bilinear",
                    },
                }
            ],
            "outputs": [{"name": "linear", "dtype": "float32", "shape": [1, 1000]}],
        },
        "run": {
            "provider": "CPUExecutionProvider",
            "threads": 4,
            "options": {"session.intra_op.allow_spinning": "1"},
            "minimum": {"onnxruntime": "1.17.0", "opset": 20, "ir_version": 9},
        },
        "default_artifact": "model/efficientnet-lite0.int8.onnx",
        "artifacts": [
            {
                "path": "model/efficientnet-lite0.int8.onnx",
                "role": "default",
                "format": "onnx",
                "precision": "int8",
                "bytes": INT8_BYTES,
                "sha256": "b" * 64,
                "toolchain": {"edgeopt": "0.1.0", "onnxruntime": "1.32.0"},
                "built_on_device": False,
            },
            {
                "path": "model/efficientnet-lite0.float32.onnx",
                "role": "fallback",
                "format": "onnx",
                "precision": "float32",
                "bytes": FLOAT_BYTES,
                "sha256": "a" * 64,
                "toolchain": {"edgeopt": "0.1.0"},
                "built_on_device": False,
            },
        ],
        "golden": {
            "count": 4,
            "samples": [
                {
                    "inputs": [f"golden/{k:03d}.input.0.npy"],
                    "outputs": {
                        "float32": [f"golden/{k:03d}.float32.0.npy"],
                        "int8": [f"golden/{k:03d}.int8.0.npy"],
                    },
                }
                for k in range(4)
            ],
            "tolerance": {"int8": {"sqnr_db": 20.9}, "float32": {"sqnr_db": 80.0}},
        },
        "steps": [
            {"kind": r["step"]["kind"], "name": r["step"]["name"], "status": r["status"], "reason": r["reason"]}
            for r in diary()
        ],
        "quality": {
            "verified": True,
            "set": "imagenette crops (evaluation part)",
            "samples": 400,
            "outputs": [
                {"output": "linear", "sqnr_db": 23.94, "cosine": 0.99798, "max_abs": 1.3718},
                {"output": "linear[axis1=291]", "sqnr_db": 17.2, "cosine": 0.9905, "max_abs": 1.3718},
            ],
            "agreement": {"top1": 0.97, "ties": 0.0025},
            "metric": {"name": "top1", "float": 0.905, "artifact": 0.8975, "drop": 0.0075},
        },
        "placement": _placement(),
        "memory": {s["name"]: s["memory"] for s in measured},
        "budget": {
            "peak_bytes": 64_000_000,
            "artifact_bytes": None,
            "latency_ms": None,
            "latency_percentile": 0.95,
            "max_drop": 0.01,
            "checked": [
                {"name": "memory", "limit": 64_000_000, "measured": 34_267_136, "ok": True},
                {"name": "drop", "limit": 0.01, "measured": 0.0075, "ok": True},
            ],
        },
        "measured_on": {
            "is_target": False,
            "machine": "AMD EPYC 9R14 x86_64, 2 CPUs, Linux 6.1",
            "note": "measured on the build host, not on the target",
        },
        "verdict": {
            "text": "int8: 3.7x smaller, 2.1x faster and 21.3 MB less memory than float, at 97.0 % top-1 agreement.",
            "warnings": [],
        },
    }


def build() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """The four arguments of ``render``."""
    return manifest(), diary(), {"build": measurement()}, timelines()


def release() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """Twenty processes, three subjects, every percentile supported, measured on the target, one process failed."""
    made, steps, _, lines = build()
    measured = measurement(20, 150, seed=3, original=True)
    broken = measured["subjects"][1]["processes"][4]
    broken.update(warmup_ns=[], steady_ns=[], error="killed by signal 9")
    made["memory"] = {s["name"]: s["memory"] for s in measured["subjects"]}
    made["measured_on"] = {"is_target": True, "machine": "Raspberry Pi 5 Model B Rev 1.0", "note": ""}
    made["budget"]["checked"][0].update(limit=32_000_000, ok=False)
    made["budget"]["peak_bytes"] = 32_000_000
    made["backend"] = {"name": "onnxruntime", "preferred": "tensorrt", "reason": "this version does not build for it"}
    for node in made["placement"]["nodes"][:40]:
        node.update(runs="float", why="the runtime has no integer kernel for it")
    made["placement"].update(int8=19, float=43)
    lines["int8"] = [{**row, "key": f"other/{k}"} for k, row in enumerate(lines["int8"])]
    return made, steps, {"release": measured}, lines


def troubled() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """A camera's rhythm on the target, outliers of every cause, heat, a leak, a crash and missing sensors."""
    made, steps, _, lines = build()
    measured = _troubled()
    made["memory"] = {s["name"]: s["memory"] for s in measured["subjects"]}
    made["measured_on"] = {"is_target": True, "machine": "Raspberry Pi 5 Model B Rev 1.0", "note": ""}
    return made, steps, {"release": measured}, lines


def unmeasured() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """A build without data, without measurements and with shapes unknown: only the float artifact."""
    made = manifest()
    missing = {"bytes": None, "reason": "no /proc on this system"}
    made["artifacts"] = [{**made["artifacts"][1], "role": "default"}]
    made["default_artifact"] = made["artifacts"][0]["path"]
    made["quality"] = {
        "verified": False,
        "set": None,
        "samples": 0,
        "outputs": [],
        "agreement": None,
        "metric": None,
        "reason": "no evaluation set was given",
    }
    made["placement"] = {"int8": 0, "fused": 33, "float": 62, "nodes": [], "note": "as optimized on the host"}
    made["memory"] = {"float32": {"interpreter": missing, "runtime": missing, "model": missing}}
    made["budget"] = {"peak_bytes": None, "checked": []}
    made["verdict"] = {
        "text": "float32: cleaned up and fused; nothing was quantized.",
        "warnings": ["No calibration data: no int8."],
    }
    made["signature"]["inputs"][0].update(layout=None, preprocessing=None)
    steps = diary()[:1]
    steps[0]["after"]["peak_activation_bytes"] = steps[0]["before"]["peak_activation_bytes"] = None
    return made, steps, {}, {}


def hostile() -> tuple[Json, list[Json], dict[str, Json], dict[str, list[Json]]]:
    """Every name that a model file controls carries markup."""
    evil = "\"><script>alert(1)</script>|`x`\n<img src=x onerror=alert(2)>'\\"
    made, steps, measured, lines = build()
    made["name"] = evil
    made["source"]["file"] = evil
    made["signature"]["inputs"][0]["name"] = evil
    made["signature"]["outputs"][0]["name"] = evil
    made["verdict"] = {"text": evil, "warnings": [evil]}
    made["quality"]["set"] = evil
    for output in made["quality"]["outputs"]:
        output["output"] = evil
    for node in made["placement"]["nodes"]:
        node["key"] = node["why"] = evil
    made["placement"]["note"] = evil
    for step in steps:
        step["reason"] = evil
        step["step"]["name"] = evil
        step["step"]["why"] = evil
    for rows in lines.values():
        for row in rows:
            row["key"] = evil + row["key"]
    for subject in measured["build"]["subjects"]:
        subject["processes"][0]["error"] = evil
        subject["audit"]["outside"] = [{"op": evil, "provider": evil, "count": 1, "macs": 1}]
    measured["build"]["environment"].update(cpu=evil, governor=evil)
    measured["build"]["environment"]["missing"]["board"] = evil
    return made, steps, measured, lines
