"""Bundle -> report.html, report.md, report.json and README.md. Pure: JSON-ready values in, bytes out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report.markdown import markdown
from edgeopt.report.page import page
from edgeopt.report.readme import readme
from edgeopt.report.summary import SCHEMA, summary

__all__ = ["SCHEMA", "render"]


def render(
    manifest: Mapping[str, Any],
    diary: Sequence[dict[str, Any]],
    measurements: Mapping[str, dict[str, Any]],
    timelines: Mapping[str, Sequence[dict[str, Any]]],
    pictures: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """Write the four files of a bundle that people and release scripts read. Same input, same bytes.

    Args:
        manifest: ``edgeopt.bundle/1``; ``files`` and ``identity`` may still be missing.
        diary: one row a step, as in ``diary.jsonl``.
        measurements: ``edgeopt.measurement/2`` by name; the first, by name, that holds the default artifact's
            precision is shown.
        timelines: precision -> ``{"key", "op", "live_bytes"}`` a node, in execution order.
        pictures: PNG files by path in the bundle, of the worst samples; the page has them inside.

    Raises:
        ValueError: a value is NaN or infinite, which JSON cannot say.
    """
    found = summary(manifest, diary, measurements)
    report = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return {
        "report.html": page(manifest, diary, measurements, timelines, found, pictures or {}).encode(),
        "report.md": markdown(manifest, diary, measurements, timelines, found, pictures or {}).encode(),
        "report.json": f"{report}\n".encode(),
        "README.md": readme(manifest, found).encode(),
    }
