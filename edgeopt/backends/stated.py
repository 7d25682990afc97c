"""What is written about runtimes that this version does not build for: read in their sources, asked of no runtime."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from edgeopt.backends.operators import Missing, grouped, scopes, spelled
from edgeopt.model import Model
from edgeopt.target.parse import parts


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("stated.json").read_text(encoding="ascii"))
    return table


def stated(model: Model, backend: str, release: str | None) -> tuple[Missing, ...]:
    """What stands against a graph by what is written; the last reason says that edgeopt does not build for it.

    Nothing of it is certain: no runtime was asked.
    """
    table = _table().get(backend)
    own = Missing(
        operator="",
        why=f"this version of edgeopt does not build for {backend}",
        change="Build for another backend of the profile.",
        certain=False,
    )
    if table is None:
        return (own,)
    found = []
    for node, _ in scopes(model):
        name = spelled(node)
        first = table["since"].get(name)
        if name in table["never"] or node.domain not in ("", "ai.onnx"):
            why, change = f"{backend} is said not to have it", "Export the network without it."
        elif first is not None and release is not None and parts(release) < parts(first):
            why, change = f"{backend} {release} is said not to have it", f"Take {backend} {first} or newer."
        else:
            continue
        found.append((Missing(operator=name, why=why, change=change, certain=False), node))
    return (*grouped(found), own)
