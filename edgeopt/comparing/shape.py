"""Checks the shape of foreign JSON before it is used: every value that a reader touches has its type and its range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
"""Looks at a value and at its place, such as ``subjects[0].bytes``; raises ``Misshapen``."""

MAX_WHOLE = 2**62
"""Nanoseconds and bytes beyond this are no measurement, and leave what a double holds with sense."""


class Misshapen(ValueError):  # noqa: N818
    """A value is missing or not what it should be; the message names its place."""


def text(value: Any, where: str) -> None:
    """A string of at most 10,000 characters."""
    if not isinstance(value, str) or len(value) > 10_000:
        raise Misshapen(f"{where} is no text")


def flag(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise Misshapen(f"{where} is neither true nor false")


def number(value: Any, where: str) -> None:
    """A finite number, not beyond ``MAX_WHOLE``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise Misshapen(f"{where} is no number")
    if not -MAX_WHOLE <= value <= MAX_WHOLE:
        raise Misshapen(f"{where} is out of range")


def whole(least: int = 0, most: int = MAX_WHOLE) -> Check:
    """A whole number between two limits."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int:
            raise Misshapen(f"{where} is no whole number")
        if not least <= value <= most:
            raise Misshapen(f"{where} is out of range")

    return check


def word(*known: str | None) -> Check:
    """One of some words."""

    def check(value: Any, where: str) -> None:
        if value not in known:
            raise Misshapen(f"{where} is none of {', '.join(map(str, known))}")

    return check


def maybe(inner: Check) -> Check:
    """Null, or what ``inner`` takes."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            inner(value, where)

    return check


def rows(inner: Check, least: int = 0) -> Check:
    """A list of what ``inner`` takes."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise Misshapen(f"{where} is no list{f' of at least {least}' if least else ''}")
        for index, entry in enumerate(value):
            inner(entry, f"{where}[{index}]")

    return check


def pair(inner: Check) -> Check:
    """A list of two of what ``inner`` takes."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or len(value) != 2:
            raise Misshapen(f"{where} is no pair")
        rows(inner)(value, where)

    return check


def mapping(inner: Check) -> Check:
    """An object with any keys, and values that ``inner`` takes."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misshapen(f"{where} is no object")
        for key, entry in value.items():
            inner(entry, f"{where}.{key:.40}")

    return check


def table(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys; others are let pass."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misshapen(f"{where or 'it'} is no object")
        prefix = f"{where}." if where else ""
        for key, inner in required.items():
            if key not in value:
                raise Misshapen(f"{prefix}{key} is missing")
            inner(value[key], prefix + key)
        for key, inner in (optional or {}).items():
            if key in value:
                inner(value[key], prefix + key)

    return check


def either(condition: Callable[[Any], bool], yes: Check, no: Check) -> Check:
    """``yes`` where the condition holds for the value, else ``no``."""

    def check(value: Any, where: str) -> None:
        (yes if condition(value) else no)(value, where)

    return check
