"""What an artifact may cost: the value, and the text a user writes for it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from edgeopt.errors import did_you_mean

_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_MILLISECONDS = {"us": Decimal("0.001"), "ms": Decimal(1), "s": Decimal(1000)}
_PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z%]*)")

BUILT_FOR = ("onnxruntime", "openvino")
"""Backends that a build can be told to use."""

QUANTIZE = ("auto", "static", "dynamic", "weights-int8", "weights-int4", "float16", "bfloat16", "none")
"""What a build may be asked to reduce weights and activations to."""

OBJECTIVES = ("memory", "latency", "size", "quality")
"""What a build may be asked to make as good as it can within its limits."""

CALIB_MEMORY = 192_000_000
"""Bytes that the statistics of a calibration may hold, unless told otherwise."""

MAX_FLOAT_MACS = 0.2
"""Share of the multiply-accumulates that the search may keep in float, unless told otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What the artifact may cost, and what its outputs must hold; ``None`` is no limit.

    Attributes:
        peak_bytes: of memory: runtime and model.
        load_ms: from a path to a session that is ready.
        max_drop: largest drop of the metric, as a share (0.01 = 1 %).
        min_sqnr_db: smallest SQNR of any output against the float model, in dB.
        max_error: largest absolute error by output name.
    """

    peak_bytes: int | None = None
    artifact_bytes: int | None = None
    latency_ms: float | None = None
    latency_percentile: float = 0.95
    load_ms: float | None = None
    max_drop: float | None = None
    min_sqnr_db: float | None = None
    max_error: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def floors(self) -> dict[str, object]:
        """The limits on quality that were stated, as plain values."""
        stated = {"max_drop": self.max_drop, "min_sqnr_db": self.min_sqnr_db, "max_error": dict(self.max_error) or None}
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def measured(self) -> list[str]:
        """Names of the limits that need a measurement."""
        percentile = f"p{self.latency_percentile * 100:g}"
        limits = {"memory": self.peak_bytes, percentile: self.latency_ms, "load": self.load_ms}
        return [name for name, limit in limits.items() if limit is not None]

    def over(self, below: Budget) -> Budget:
        """These limits where they are stated, those of ``below`` elsewhere; a percentile goes with its latency."""
        found = {k: v for k, v in vars(self).items() if v is not None and k not in ("latency_percentile", "max_error")}
        if self.latency_ms is not None:
            found["latency_percentile"] = self.latency_percentile
        return dataclasses.replace(below, **found, max_error={**below.max_error, **self.max_error})


def parse_budget(text: str | None, max_drop: str | None = None) -> Budget:
    """Read ``memory=64MB,size=5MB,p95=20ms,load=200ms`` and ``1%``; kB and MB are powers of 1000, KiB and MiB of 1024.

    Raises:
        ValueError: unknown key or unit, a repeated key, a number that is missing, zero or without its unit.
    """
    peak = artifact = latency = load = None
    percentile, seen = 0.95, set()
    for part in (text or "").split(",") if (text or "").strip() else ():
        key, equals, amount = (piece.strip() for piece in part.partition("="))
        known = ("memory", "size", *_PERCENTILES, "load")
        if key not in known:
            raise ValueError(f'budget: unknown limit "{key}".{did_you_mean(key, known)} Known: {", ".join(known)}.')
        if not equals:
            raise ValueError(f'budget: "{part.strip()}" has no value; write {key}=<number><unit>.')
        kind = "latency" if key in _PERCENTILES else key
        if kind in seen:
            raise ValueError(f"budget: more than one limit for {kind}; give one.")
        seen.add(kind)
        if kind == "latency":
            latency, percentile = float(_quantity(f"budget {key}", amount, _MILLISECONDS)), _PERCENTILES[key]
        elif kind == "load":
            load = float(_quantity("budget load", amount, _MILLISECONDS))
        elif kind == "memory":
            peak = max(1, int(_quantity(f"budget {key}", amount, _BYTES)))
        else:
            artifact = max(1, int(_quantity(f"budget {key}", amount, _BYTES)))
    drop = None if max_drop is None else parse_share("max-drop", max_drop)
    return Budget(
        peak_bytes=peak,
        artifact_bytes=artifact,
        latency_ms=latency,
        latency_percentile=percentile,
        load_ms=load,
        max_drop=drop,
    )


def parse_size(what: str, text: str) -> int:
    """Bytes of a text such as ``64KB``; ``what`` names it in errors.

    Raises:
        ValueError: no number with a unit.
    """
    return max(1, int(_quantity(what, text.strip(), _BYTES)))


def parse_share(what: str, text: str) -> float:
    """A share of a text such as ``5%``.

    Raises:
        ValueError: no percentage from 0 to 100.
    """
    share = float(_quantity(what, text.strip(), {"%": Decimal("0.01")}, zero=True))
    if share > 1:
        raise ValueError(f'{what}: "{text}" is more than 100%.')
    return share


def parse_decibels(what: str, text: str) -> float:
    """A text such as ``25`` or ``25dB``.

    Raises:
        ValueError: no positive number, or another unit.
    """
    text = text.strip()
    return float(_quantity(what, f"{text}dB" if text[-1:].isdigit() else text, {"dB": Decimal(1)}))


def parse_errors(what: str, texts: Iterable[str]) -> dict[str, float]:
    """Texts such as ``heat=0.05``: the largest absolute error by name of an output.

    Raises:
        ValueError: no name, no positive number, or a name that comes twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not equals or not name.strip() or not 0 < value < math.inf:
            raise ValueError(f'{what}: "{text}" is not OUTPUT=VALUE with a positive number.')
        if name.strip() in found:
            raise ValueError(f'{what}: more than one value for "{name.strip()}".')
        found[name.strip()] = value
    return found


def _quantity(what: str, text: str, units: Mapping[str, int] | Mapping[str, Decimal], *, zero: bool = False) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    example = f"{next(iter(units)) if len(units) == 1 else list(units)[len(units) // 2]}"
    if match is None:
        raise ValueError(f'{what}: "{text}" is not a positive number with a unit, like 5{example}.')
    number, unit = Decimal(match[1]), match[2]
    if unit not in units:
        said = f'unknown unit "{unit}".{did_you_mean(unit, tuple(units))}' if unit else f'"{text}" has no unit.'
        raise ValueError(f"{what}: {said} Units: {', '.join(units)}.")
    if number == 0 and not zero:
        raise ValueError(f"{what}: a limit of zero cannot be met; give a positive number.")
    return number * Decimal(units[unit])
