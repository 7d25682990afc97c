"""The curve of a search for precision: all in integers, what was tried, all in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgeopt.model import Model
from edgeopt.pipeline.search import Search, gate
from edgeopt.plan import Point
from edgeopt.quality import Quality
from edgeopt.quantize import QuantizedModel
from edgeopt.target import Budget


class Tried(NamedTuple):
    """A model with some operators in float; ``refused`` says which limit it misses."""

    nodes: frozenset[str]
    quantized: QuantizedModel
    seen: Quality
    seconds: float | None
    refused: str | None


def points(
    search: Search,
    limits: Budget,
    share: Mapping[str, float],
    sets: Sequence[tuple[frozenset[str], tuple[str, ...]]],
    tried: Mapping[int, Tried],
    chosen: int | None,
) -> tuple[Point, ...]:
    """One point for every model of a search that began with ``search.quantized``.

    Args:
        share: of the multiply-accumulates, by node key.
        sets: growing sets of operators, each with those that are new in it.
        tried: by the number of a set, from 1.
    """
    assert search.quantized is not None
    assert search.seen is not None

    def point(label: str, model: Model, seen: Quality, seconds: float | None, count: int = 0) -> Point:
        nodes = sets[count - 1][0] if count else frozenset()
        return Point(
            label=label,
            float_macs=sum(share.get(key, 0.0) for key in nodes),
            kept=tuple(key for _, new in sets[:count] for key in new),
            bytes=search.cost(model).weight_bytes,
            sqnr_db=seen.sqnr_db,
            agreement=None if seen.agreement is None else seen.agreement.top1,
            metric=None if seen.metric is None else seen.metric.artifact,
            holds=gate(seen, limits) is None,
            latency_ms=None if seconds is None else 1000 * seconds,
            chosen=count == chosen,
        )

    exact = Quality(samples=search.seen.samples, outputs=(), slices=(), agreement=None, metric=None, finite=True)
    whole = point("float", search.model, exact, search.float_seconds)
    return (
        point("all int8", search.quantized.model, search.seen, search.seconds),
        *(
            point(f"{len(one.nodes)} in float", one.quantized.model, one.seen, one.seconds, count)
            for count, one in sorted(tried.items())
        ),
        dataclasses.replace(whole, float_macs=1.0, holds=True),
    )
