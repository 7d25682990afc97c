"""The first line of a bundle: what ships, and what it costs against the model as loaded."""

from __future__ import annotations

import math

from edgeopt.pipeline.decide import Final, comparable
from edgeopt.pipeline.measure import Measured
from edgeopt.quality import Metric
from edgeopt.report.text import size
from edgeopt.target import Target


def verdict(final: Final, measured: Measured, target: Target) -> str:
    """One sentence for the first line: what ships, and what it costs against the model as loaded."""
    artifacts, default = final.judged.outcome.artifacts, final.default
    before, after = final.judged.outcome.original.origin.bytes, artifacts[default].bytes
    parts = [f"{default} ships: {size(after)}, {_times(before, after)} the source file"]
    ratio, word = measured.ratio("original", default), measured.verdict("original", default)
    grade = measured.grade
    steady = grade in ("stable", "noisy")
    if grade == "invalid":
        parts.append("its measurement is not valid")
    elif ratio is not None:
        where = (
            "here, on this kind of processor" if comparable(target) else "on the build host, which is not the target"
        )
        words = {"faster": "faster than", "slower": "slower than", "equivalent": "as fast as"}
        compared = f"{words[word]} the original" if word in words else "not clearly faster or slower than the original"
        figures = f"{ratio[0]:.2f}x the time, {ratio[1]:.2f} to {ratio[2]:.2f}"
        parts.append(f"{compared} {where} ({figures})" + ("" if steady else f", in a measurement graded {grade}"))
    quality = final.judged.quality[default]
    if not final.judged.full:
        return "; ".join([*parts, "quality not verified on real inputs"])
    if quality.metric is not None:
        parts.append(_metric_text(quality.metric))
    elif quality.agreement is not None:
        parts.append(f"{quality.agreement.top1:.2%} top-1 agreement with float on {quality.samples} samples")
    if math.isfinite(quality.sqnr_db):
        parts.append(f"SQNR {quality.sqnr_db:.1f} dB")
    return "; ".join(parts)


def _metric_text(metric: Metric) -> str:
    spread = f", drop {metric.drop * 100:.2f} +- {metric.half_width * 100:.2f} points" if metric.drop > 0 else ""
    return f"{metric.name} {metric.artifact:.2%} (float {metric.reference:.2%}{spread})"


def _times(before: int, after: int) -> str:
    ratio = before / after
    return (
        f"{ratio:.1f}x smaller than"
        if ratio >= 1.05
        else "as large as"
        if ratio > 0.95
        else f"{1 / ratio:.1f}x as large as"
    )
