"""Timelines and measurements of a made-up EfficientNet-Lite0 build: seeded, of realistic size."""

from __future__ import annotations

import math
import random
from typing import Any

Json = dict[str, Any]

BLOCKS = [  # expansion, kernel, stride, channels, repeats of EfficientNet-Lite0
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
]


def timelines() -> dict[str, list[Json]]:
    """Live bytes of float and int8 in execution order; the int8 graph has Q/DQ nodes besides."""
    convs: list[tuple[str, int, int, int]] = []  # key, elements read, elements written, residual elements held
    side, channels = 112, 32
    convs.append(("stem/conv", 3 * 224 * 224, channels * side * side, 0))
    for stage, (expansion, _, stride, out, repeats) in enumerate(BLOCKS):
        for block in range(repeats):
            step = stride if block == 0 else 1
            name = f"blocks.{stage}.{block}"
            source, wide = channels * side * side, channels * expansion
            held = source if block else 0
            if expansion > 1:
                convs.append((f"{name}/expand", source, wide * side * side, held))
            reduced = side // step
            convs.append((f"{name}/depthwise", wide * side * side, wide * reduced * reduced, held))
            convs.append((f"{name}/project", wide * reduced * reduced, out * reduced * reduced, held))
            if block:
                convs.append((f"{name}/add", out * reduced * reduced, out * reduced * reduced, held))
            side, channels = reduced, out
    convs.append(("head/conv", channels * side * side, 1280 * side * side, 0))
    convs.append(("head/pool", 1280 * side * side, 1280, 0))
    convs.append(("classifier", 1280, 1000, 0))
    image = 3 * 224 * 224
    float_rows = [
        {"key": key, "op": _op(key), "live_bytes": 4 * (image + (0 if key == "stem/conv" else read) + made + held)}
        for key, read, made, held in convs
    ]
    int8_rows = [{"key": "inputs_q", "op": "QuantizeLinear", "live_bytes": 5 * image}]
    for key, read, made, held in convs:
        live = 4 * image + read + made + held
        int8_rows.append({"key": f"{key}/weight_dq", "op": "DequantizeLinear", "live_bytes": live - made})
        int8_rows.append({"key": key, "op": _op(key), "live_bytes": live})
        int8_rows.append({"key": f"{key}/q", "op": "QuantizeLinear", "live_bytes": live - read})
    return {"float32": float_rows, "int8": int8_rows}


def _op(key: str) -> str:
    return {"add": "Add", "pool": "GlobalAveragePool", "classifier": "Gemm"}.get(key.rsplit("/")[-1], "Conv")


def measurement(processes: int = 3, samples: int = 60, seed: int = 7, *, original: bool = False) -> Json:
    """float32 and int8 in alternation, ``original`` besides if asked: lognormal noise, a process effect, outliers."""
    noise = random.Random(seed)

    def process(median_ms: float, effect: float) -> Json:
        steady = [int(1e6 * median_ms * math.exp(effect + noise.gauss(0, 0.012))) for _ in range(samples)]
        for _ in range(max(1, samples // 40)):
            steady[noise.randrange(samples)] = int(1e6 * median_ms * noise.uniform(1.1, 1.6))
        warm = [int(1e6 * median_ms * (1 + 0.5 / (k + 1))) for k in range(12)]
        phases = {"import": int(9.1e7), "load": int(median_ms * 3.1e6), "first": int(median_ms * 1.6e6)}
        return {"phases_ns": phases, "warmup_ns": warm, "steady_ns": steady, "error": None}

    def subject(name: str, median_ms: float, digest: str, model: int, runtime: int) -> Json:
        return {
            "name": name,
            "file": f"model/efficientnet-lite0.{name}.onnx",
            "sha256": digest * 64,
            "runtime": {"name": "onnxruntime", "version": "1.32.0", "provider": "CPUExecutionProvider"},
            "processes": [process(median_ms, effect) for effect in _effects(noise, processes)],
            "memory": {
                "interpreter": _memory(28_311_552, 9_437_184),
                "runtime": _memory(runtime, 7_340_032),
                "model": _memory(model, model - 1_800_000),
            },
        }

    return {
        "schema": "edgeopt.measurement/1",
        "effort": "quick",
        "threads": 2,
        "order": ["float32", "int8", "int8", "float32", "float32", "int8"],
        "subjects": [
            *([subject("original", 18.9, "d", 36_100_000, 21_340_160)] if original else []),
            subject("float32", 17.1, "a", 34_209_792, 21_340_160),
            subject("int8", 8.04, "b", 12_926_976, 21_340_160),
        ],
        "environment": {
            "machine": "x86_64",
            "board": None,
            "cpu": "AMD EPYC 9R14",
            "flags": ["sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"],
            "cpus": 2,
            "cpus_allowed": [0, 1],
            "cpus_online": 2,
            "quota_cpus": None,
            "governor": None,
            "load1": 0.42,
            "memory_bytes": 8_127_901_696,
            "kernel": "Linux 6.1.0-13-amd64",
            "python": "3.11.2",
            "missing": {
                "board": "no /proc/device-tree/model",
                "governor": "no cpufreq in /sys",
                "quota_cpus": "no cgroup quota",
            },
        },
        "advice": [
            {
                "code": "few-processes",
                "severity": "info",
                "text": "3 processes: intervals are wide; use --effort standard before a release.",
            },
            {
                "code": "shared-host",
                "severity": "warning",
                "text": "Nothing pins the clock (no cpufreq in /sys): repeat on a quiet machine before comparing.",
            },
        ],
    }


def _effects(noise: random.Random, processes: int) -> list[float]:
    return [noise.gauss(0, 0.018) for _ in range(processes)]


def _memory(total: int, anonymous: int) -> Json:
    return {
        "bytes": total,
        "anonymous_bytes": anonymous,
        "file_bytes": total - anonymous,
        "source": "/proc/self/status VmHWM",
        "method": "fresh process, peak reset",
    }
