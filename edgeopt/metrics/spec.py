"""Names and parameters of the metrics, and the one table that builds them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from edgeopt.metrics.auc import auc
from edgeopt.metrics.choices import accuracy, top_k
from edgeopt.metrics.correlation import Pair, correlation
from edgeopt.metrics.f1 import f1
from edgeopt.metrics.maps import iou
from edgeopt.metrics.own import own
from edgeopt.metrics.regression import mae, rmse
from edgeopt.metrics.scorer import Scorer
from edgeopt.metrics.text import cer

LabelKind = Literal["class", "number", "numbers", "text", "map", "any", "none"]

NAMES = ("top1", "top5", "top", "accuracy", "f1", "auc", "cer", "pearson", "spearman", "miou", "mae", "rmse")
"""Every metric that comes with edgeopt; ``top`` takes ``k``, and ``topN`` is short for it."""

_LABELS: Mapping[str, LabelKind] = {"cer": "text", "miou": "map", "mae": "numbers", "rmse": "numbers"}
_TOP = re.compile(r"top([1-9]\d{0,3})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """What a description asks for.

    Attributes:
        name: one of ``NAMES`` as ``topN`` where it is ``top``, or ``package.module:function``.
        params: plain JSON values; of files only that there is one.
    """

    name: str
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def labels(self) -> LabelKind:
        """What its labels are."""
        if ":" in self.name:
            return "any" if self.params.get("labels", True) else "none"
        if self.name in ("pearson", "spearman"):
            return "none" if self.params.get("pairs") else "number"
        return _LABELS.get(self.name, "class")

    def plain(self) -> object:
        """Itself as JSON values: the name alone where there is nothing else to say."""
        return {"name": self.name, **self.params} if self.params else self.name


def named(name: str) -> MetricSpec:
    """A metric with nothing but a name.

    Raises:
        ValueError: there is no such metric.
    """
    if not (_TOP.fullmatch(name) or name in NAMES):
        raise ValueError(f'unknown metric "{name}"')
    return MetricSpec(name=name)


def scorer(
    spec: MetricSpec,
    *,
    charset: Sequence[str] | None = None,
    pairs: Sequence[Pair] | None = None,
    samples: int = 0,
    function: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
) -> Scorer:
    """The metric that ``spec`` names, ready to judge.

    Args:
        charset, pairs, function, score: what ``spec`` only names, loaded.
        samples: how many samples are in use, for pairs.
    """
    given = spec.params
    output = given.get("output")
    threshold = float(given.get("threshold", 0.5))
    if found := _TOP.fullmatch(spec.name):
        return top_k(k=int(found[1]), output=output)
    match spec.name:
        case "accuracy":
            return accuracy(threshold=threshold, output=output)
        case "f1":
            average, positive = given.get("average", "binary"), given.get("positive", 1)
            return f1(average=average, threshold=threshold, positive=positive, output=output)
        case "auc":
            return auc(positive=given.get("positive", 1), threshold=threshold, output=output)
        case "cer":
            return cer(blank=given.get("blank", 0), charset=charset, axes=given.get("axes", "BTC"), output=output)
        case "pearson" | "spearman":
            pool, mask = given.get("pool", "none"), given.get("mask")
            return correlation(kind=spec.name, pairs=pairs, samples=samples, pool=pool, mask=mask, output=output)
        case "miou":
            axis = 3 if given.get("layout") == "NHWC" else 1
            return iou(axis=axis, threshold=threshold, ignore=given.get("ignore"), output=output)
        case "mae":
            return mae(output=output)
        case "rmse":
            return rmse(output=output)
    assert function is not None
    return own(
        name=spec.name.rpartition(":")[2],
        function=function,
        score=score,
        better=given.get("better", "higher"),
        unit=given.get("unit", "share"),
        needs_label=spec.labels != "none",
    )
