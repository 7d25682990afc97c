"""The kinds of checks: what each looks at in the results of a comparison, what it wants, and what it found.

A check takes what is seen of one build of edgeopt and its own entry of ``bars.toml``; it returns what it found, for
people, and whether that is enough. It raises ``MissingError``, KeyError or TypeError where a figure is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from _peers import figures
from _peers.networks import FLOAT

Json = Mapping[str, Any]

ENDS_WITHIN = 1.03
"""Not slower: the interval of the ratio begins at or below the limit and ends at or below this times the limit."""


class MissingError(Exception):
    """A figure that a check needs is not there."""


class Seen(NamedTuple):
    """What a check looks at: the network's results, one build of edgeopt in a runtime, its row."""

    results: Json
    build: str
    runtime: str
    row: Json

    @property
    def tool(self) -> str:
        return f"edgeopt {self.build}"


def row_of(network: Json, tool: str, runtime: str) -> Json | None:
    return next((row for row in network["rows"] if (row["tool"], row["runtime"]) == (tool, runtime)), None)


def quality(row: Json, title: str | None = None) -> Json:
    """Of one set, the first where none is named."""
    if "sets" not in row.get("quality", {}):
        raise MissingError(row.get("quality", {}).get("error", "it was not judged"))
    sets = row["quality"]["sets"]
    found: Json = sets[title] if title else next(iter(sets.values()))
    return found


def worst_sqnr(row: Json) -> float:
    """In dB, of the worst output; one without any error is exact."""
    values = [value for value in quality(row)["sqnr_db"].values() if value is not None]
    if not values:
        raise MissingError("no output has an error")
    return float(min(values))


def float_share(row: Json) -> float:
    """Of the multiplications in what a quantizer could reach, those that ran in float."""
    macs = row["quality"]["macs"]
    if "total" not in macs:
        raise MissingError(macs.get("reason", "the multiplications were not counted"))
    return float((macs["float"] + macs["other"]) / macs["total"])


def comparison(seen: Seen, than: str, tool: str | None = None) -> Json:
    """Of one tool (A) and a build (B)."""
    for one in seen.results["comparisons"]:
        if (one["a"], one["b"], one["runtime"]) == (than, tool or seen.tool, seen.runtime):
            if "error" in one:
                raise MissingError(f"against {than}: {one['error']}")
            found: Json = one
            return found
    raise MissingError(f"there is no comparison with {than}")


def _at_least(value: float, check: Json, text: str) -> tuple[str, bool]:
    return text.format(value), value >= check["at_least"]


def _at_most(value: float, check: Json, text: str) -> tuple[str, bool]:
    return text.format(value), value <= check["at_most"]


def _sqnr(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_least(worst_sqnr(seen.row), check, "{:.2f} dB")


def _agreement(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_least(quality(seen.row)["agreement"]["share"], check, "{:.2%}")


def _agreement_interval(seen: Seen, check: Json) -> tuple[str, bool]:
    found = quality(seen.row)["agreement"]
    low, high = found["interval"]
    return f"{found['share']:.2%} ({low:.2%} to {high:.2%})", low <= found["share"] <= high


def _float_macs(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_most(float_share(seen.row), check, "{:.2%}")


def _error(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_most(quality(seen.row)["largest_error"][check["output"]], check, "{:.4f}")


def _metric(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_least(quality(seen.row, check.get("set"))["metric"]["value"], check, "{:.4f}")


def _metric_drop(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_most(quality(seen.row)["metric"]["drop"], check, "{:+.2%}")


def _drop_interval(seen: Seen, check: Json) -> tuple[str, bool]:
    found = quality(seen.row)["metric"]
    low, high = found["drop_interval"]
    return f"{found['drop']:+.2%} ({low:+.2%} to {high:+.2%})", high < check["below"]


def _parts_drop(seen: Seen, check: Json) -> tuple[str, bool]:
    found = quality(seen.row)["metric"]
    off = [found["value"][part] - found["float"][part] for part in check["parts"]]
    return ", ".join(f"{value:+.2%}" for value in off), max(off) <= check["at_most"]


def _not_below(seen: Seen, check: Json) -> tuple[str, bool]:
    """Ours less theirs, sample by sample: the interval reaches zero from below, or lies above it."""
    other = row_of(seen.results, check["than"], seen.runtime)
    if other is None:
        raise MissingError(f"there is no {check['than']}")
    ours, theirs = ([int(c) for c in quality(row)["metric"]["right"]] for row in (seen.row, other))
    found = figures.drop_interval(ours, theirs, quality(seen.row).get("groups"))
    low, high = found["drop_interval"]
    return f"{found['drop']:+.2%} ({low:+.2%} to {high:+.2%})", high >= 0


def not_above(found: Json, limit: float) -> bool:
    """The interval of a ratio begins at or below the limit and ends within 3 % of it."""
    if found["low"] is None or found["high"] is None:
        raise MissingError("the ratio has no interval")
    return bool(found["low"] <= limit and found["high"] <= limit * ENDS_WITHIN)


def ratio_text(found: Json) -> str:
    if found["low"] is None or found["high"] is None:
        return "-" if found["ratio"] is None else f"{found['ratio']:.3f}"
    return f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _latency(seen: Seen, check: Json) -> tuple[str, bool]:
    """Against one tool, or against every peer in that runtime; the worst is shown."""
    if check["than"] != "peers":
        found = comparison(seen, check["than"])["latency"]
        return ratio_text(found), not_above(found, check["at_most"])
    measured = [one for one in seen.results["comparisons"] if (one["b"], one["runtime"]) == (seen.tool, seen.runtime)]
    peers = [one for one in measured if one["a"] != FLOAT and not one["a"].startswith("edgeopt")]
    known = [one for one in peers if "latency" in one]
    if not known:
        raise MissingError("no peer was measured")
    worst = max(known, key=lambda one: one["latency"]["ratio"])
    unmeasured = [one["a"] for one in peers if "latency" not in one]
    text = f"{ratio_text(worst['latency'])}, {worst['a']}" + "".join(f"; {name} not measured" for name in unmeasured)
    return text, not unmeasured and all(not_above(one["latency"], check["at_most"]) for one in known)


def _memory(seen: Seen, check: Json) -> tuple[str, bool]:
    found = comparison(seen, check["than"])["memory"]
    return ratio_text(found), not_above(found, check["at_most"])


def _faster(seen: Seen, check: Json) -> tuple[str, bool]:
    found = comparison(seen, check["than"])["latency"]
    return ratio_text(found), found["high"] is not None and found["high"] < 1


def _price(seen: Seen, check: Json) -> tuple[str, bool]:
    found = comparison(seen, f"edgeopt {check['over']}")
    before, after = found["side_a"]["median_ns"], found["side_b"]["median_ns"]
    return f"{(after - before) / 1e6:+.2f} ms ({before / 1e6:.2f} to {after / 1e6:.2f} ms)", True


def _bytes(seen: Seen, check: Json) -> tuple[str, bool]:
    size = seen.row["build"]["bytes"]
    return f"{size / 1e6:.2f} MB", size <= check["at_most"]


def _file_ratio(seen: Seen, check: Json) -> tuple[str, bool]:
    return _at_most(seen.row["build"]["bytes"] / seen.results["float_bytes"], check, "{:.3f}")


def _quantize_seconds(seen: Seen, check: Json) -> tuple[str, bool]:
    steps = seen.row["build"]["step_seconds"]
    return _at_most(sum(value for kind, value in steps.items() if kind.startswith("quantize")), check, "{:.1f} s")


def _build_bytes(seen: Seen, check: Json) -> tuple[str, bool]:
    peak = seen.row["build"]["peak_bytes"]
    return f"{peak / 1e6:.0f} MB", peak <= check["at_most"]


def _build_bytes_ratio(seen: Seen, check: Json) -> tuple[str, bool]:
    other = row_of(seen.results, f"edgeopt {check['of']}", seen.runtime)
    if other is None or "peak_bytes" not in other.get("build", {}):
        raise MissingError(f"there is no build {check['of']}")
    ratio = other["build"]["peak_bytes"] / seen.row["build"]["peak_bytes"]
    return f"{ratio:.3f}", abs(ratio - 1) <= check["within"]


def _says(seen: Seen, check: Json) -> tuple[str, bool]:
    """Only a ratio that lies above 1 with its whole interval needs words."""
    found, build = comparison(seen, FLOAT)["latency"], seen.row["build"]
    if found["low"] is None:
        raise MissingError("the ratio to float has no interval")
    slower = found["low"] > 1
    told = [*build["warnings"], *(f"{one['name']}: {one['reason']}" for one in build["not_kept"])]
    words = [text for text in told if "slower" in text or "does not pay" in text]
    if not slower:
        return f"int8 over float {ratio_text(found)}", True
    said = "ships float" if build["ships"] == "float32" else words[0] if words else "ships int8 without a word"
    return f"int8 over float {ratio_text(found)}; {said}", build["ships"] == "float32" or bool(words)


KINDS: Mapping[str, tuple[str, Callable[[Seen, Json], tuple[str, bool]]]] = {
    "sqnr": ("SQNR >= {at_least:g} dB", _sqnr),
    "agreement": ("agreement >= {at_least:.0%}", _agreement),
    "agreement-interval": ("agreement, its interval over photos shown", _agreement_interval),
    "float-macs": ("multiplications in float <= {at_most:.0%}", _float_macs),
    "error": ("largest error of {output} <= {at_most:g}", _error),
    "metric": ("{set} >= {at_least:g}", _metric),
    "metric-drop": ("drop of the metric <= {at_most:.2%}", _metric_drop),
    "drop-interval": ("interval of the drop below {below:.1%}", _drop_interval),
    "parts-drop": ("character error rate within {at_most:.0%} of float", _parts_drop),
    "metric-not-below": ("top-1 not below {than}, paired", _not_below),
    "latency": ("time <= {at_most:.2f} x {than}", _latency),
    "faster": ("faster than {than}", _faster),
    "memory": ("memory <= {at_most:.2f} x {than}", _memory),
    "price": ("price over {over} shown", _price),
    "bytes": ("size <= {at_most:,} bytes", _bytes),
    "file-ratio": ("size <= {at_most:.2f} x the original", _file_ratio),
    "quantize-seconds": ("quantizing <= {at_most:g} s", _quantize_seconds),
    "build-bytes": ("peak of the build <= {at_most:,} bytes", _build_bytes),
    "build-bytes-ratio": ("{of}: the build's peak within {within:.0%}", _build_bytes_ratio),
    "says-where-slower": ("said where int8 does not pay", _says),
}
