"""The error tree. Every class owns an exit code, and every message says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class EdgeoptError(Exception):
    """Base of every error a user can meet.

    Args:
        message: what is wrong, naming the file, tensor or key.
        remedy: what to do next, one sentence; shown on its own line.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n{self.remedy}"


class ModelError(EdgeoptError):
    """The model file is missing, is not a model, is damaged, hostile or unsupported."""

    exit_code = 3


class TargetError(EdgeoptError):
    """The device profile or a data set description is unknown or invalid."""

    exit_code = 4


class CalibrationError(TargetError):
    """The calibration or evaluation data cannot be used. Shares the exit code of bad descriptions."""


class BudgetError(EdgeoptError):
    """No footprint within the budget was reached; the message names the smallest one and the shortfall.

    Args:
        diary: what was tried: a row a candidate, as plain values.
    """

    exit_code = 5

    def __init__(self, message: str, *, remedy: str | None = None, diary: Sequence[Mapping[str, object]] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.diary = tuple(diary)


class ToolchainError(EdgeoptError):
    """A runtime or tool is missing; the remedy holds the pip line."""

    exit_code = 6


class QualityError(EdgeoptError):
    """The quality floor could not be held."""

    exit_code = 7


class BenchError(EdgeoptError):
    """A measurement could not be made or trusted."""

    exit_code = 8


class BundleError(EdgeoptError):
    """A bundle is damaged, hostile, foreign, or cannot be written."""

    exit_code = 9


class RegressionError(EdgeoptError):
    """A comparison crossed its gate."""

    exit_code = 10


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ' Did you mean "x"?' for the nearest of ``known``, or an empty string.

    A name is held against the word whole and cut to its length: "jetson-oren" is nearer to the beginning of
    "jetson-orin-nano" than to "jetson-thor". Names that begin alike are all named, in their order.
    """
    import difflib

    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(word)

    def alike(text: str, least: float) -> float:
        matcher.set_seq1(text)
        found = matcher.ratio() if matcher.quick_ratio() >= least else 0.0
        return found if found >= least else 0.0

    scored = []
    for name in dict.fromkeys(known):
        whole = alike(name, _NEAR)
        start = alike(name[: len(word)], _NEAR_START) if len(word) >= _SHORTEST_START else 0.0
        scored.append((max(whole, start), whole, name))
    score, whole, nearest = max(scored, default=(0.0, 0.0, ""))
    if not score:
        return ""
    names = [name for other, _, name in scored if other == score]
    if whole == score or len(names) > _MOST_NAMED:
        names = [nearest]
    *first, last = (f'"{name}"' for name in names)
    return f" Did you mean {', '.join(first)} or {last}?" if first else f" Did you mean {last}?"


_NEAR, _NEAR_START = 0.5, 0.75
"""Least likeness, as ``difflib`` has it, of a whole name and of its beginning."""
_SHORTEST_START = 4
"""Shorter words begin too many names by chance."""
_MOST_NAMED = 4
