"""The first line of a bundle: what ships, and what it costs against the model as loaded."""

from __future__ import annotations

import math

from edgeopt.pipeline.decide import Final, comparable
from edgeopt.pipeline.measure import Measured
from edgeopt.quality import DIGITS, Metric
from edgeopt.report.text import size, size_against
from edgeopt.target import Target


def verdict(final: Final, measured: Measured, target: Target) -> str:
    """One sentence for the first line: what ships, and what it costs against the model as loaded."""
    artifacts, default = final.judged.outcome.artifacts, final.default
    origin, after = final.judged.outcome.original.origin, artifacts[default].bytes
    source = {"format": origin.format, "bytes": origin.bytes}
    name = str(origin.path) if origin.format == "factory" else "the source file"
    parts = [f"{default} ships: {size(after)}, {size_against(source, after, name)}"]
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
        agreement = quality.agreement
        parts.append(f"{agreement.top1:.2%} {agreement.of} agreement with float on {quality.samples} samples")
    if math.isfinite(quality.sqnr_db):
        parts.append(f"SQNR {quality.sqnr_db:.1f} dB")
    return "; ".join(parts)


def _metric_text(metric: Metric) -> str:
    factor, digits, unit = (100, ".2f", " points") if metric.unit == "share" else (1, DIGITS[metric.unit], "")
    half = "" if metric.half_width is None else f" +- {metric.half_width * factor:{digits}}"
    word = "drop" if metric.better == "higher" else "worse by"
    spread = f", {word} {metric.drop * factor:{digits}}{half}{unit}" if metric.drop > 0 else ""
    return f"{metric.name} {metric.shown(metric.artifact)} (float {metric.shown(metric.reference)}{spread})"
