"""Checks the results of a comparison against ``bars.toml``: what must be reached, and what was.

Results are ``{"networks": {name: {"title", "float_bytes", "rows", "comparisons"}}}``. A row is a tool's model in a
runtime: ``{"tool", "runtime", "build", "quality"}``. A comparison is of two tools, ``{"a", "b", "runtime"}``, with
``latency`` and ``memory`` of B over A.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from _peers.checks import KINDS, Json, MissingError, Seen, row_of
from _peers.networks import FLOAT

FILE = Path(__file__).with_name("bars.toml")

SATISFIED = ("says-where-slower",)
"""Checks that a build without a reduced artifact passes: it ships no int8."""


ASKED = PARITY, RATIO = ("parity", "ratio")
"""That B takes no more than A, which needs a narrow interval; any other ratio, or a figure that is shown."""


class Verdict(NamedTuple):
    """One check. ``wanted`` and ``found`` are for people."""

    network: str
    build: str
    wanted: str
    found: str
    good: bool


def load(file: Path = FILE) -> list[Json]:
    """The bars.

    Raises:
        ValueError: a check is of no known kind.
    """
    with file.open("rb") as stream:
        bars: list[Json] = tomllib.load(stream)["bar"]
    for bar in bars:
        for check in bar["checks"]:
            if check["kind"] not in KINDS:
                raise ValueError(f"{file}: {bar['network']}: unknown kind {check['kind']!r}; known: {', '.join(KINDS)}")
    return bars


def judge(results: Json, bars: list[Json], names: Iterable[str]) -> list[Verdict]:
    """Every check of every bar for the networks of these names; one that is not in the results misses its bars."""
    found: list[Verdict] = []
    nothing: Json = {"rows": [], "comparisons": []}
    for bar in bars:
        for name in [name for name in names if fnmatch.fnmatch(name, bar["network"])]:
            for build in bar["builds"]:
                found += list(_of_build(results["networks"].get(name, {"title": name, **nothing}), bar, build))
    return found


def decides(bars: list[Json], name: str, a: str, b: str, runtime: str) -> str | None:
    """What a bar asks of the comparison of two tools, a kind of ``ASKED``; None: it is measured for the table alone."""
    found: set[str] = set()
    for bar in bars:
        if f"{b.removeprefix('edgeopt ')}@{runtime}" not in bar["builds"] or not fnmatch.fnmatch(name, bar["network"]):
            continue
        for check in bar["checks"]:
            than = check.get("than", FLOAT if check["kind"] == "says-where-slower" else None)
            over = f"edgeopt {check['over']}" if "over" in check else None
            if a in (than, over) or (than == "peers" and a != FLOAT and not a.startswith("edgeopt")):
                close = check["kind"] in ("latency", "memory") and check["at_most"] == 1.0
                found.add(PARITY if close else RATIO)
    return min(found, key=ASKED.index, default=None)


def _of_build(network: Json, bar: Json, build: str) -> Iterator[Verdict]:
    title, _, runtime = build.partition("@")
    row = row_of(network, f"edgeopt {title}", runtime)
    if row is None and bar["network"] == "*":
        return
    plain = row is not None and row.get("build", {}).get("precision") == "float32"
    for check in bar["checks"]:
        words, judged = KINDS[check["kind"]]
        wanted = words.format(**{"set": "the metric", **check})
        if row is None or "error" in row:
            reason = "was not compared" if row is None else row["error"]
            yield Verdict(network["title"], build, wanted, reason, good=False)
            continue
        if plain:
            yield Verdict(network["title"], build, wanted, "nothing but float32 was built", check["kind"] in SATISFIED)
            continue
        try:
            text, good = judged(Seen(network, title, runtime, row), check)
        except (MissingError, KeyError, TypeError) as error:
            text, good = f"missing: {error}", False
        yield Verdict(network["title"], build, wanted, text, good)
