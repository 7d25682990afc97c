"""Timelines of a made-up EfficientNet-Lite0 build, of realistic size."""

from __future__ import annotations

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
