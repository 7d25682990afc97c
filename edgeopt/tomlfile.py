"""Reads TOML descriptions: bounded in size, typed by hand, every problem named with its key."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path

from edgeopt.errors import TargetError, did_you_mean

MAX_BYTES = 1 << 20
"""A description larger than this is not a description."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a description. A getter that meets a bad value adds to ``problems`` and returns its default.

    Attributes:
        data: the parsed TOML table.
        path: dotted key of this table, empty for the top level.
        problems: sentences that name a key; shared by all tables of one file.
    """

    data: dict[str, object]
    path: str = ""
    problems: list[str] = dataclasses.field(default_factory=list)

    def key(self, name: str) -> str:
        """The dotted key of a value in this table."""
        return f"{self.path}.{name}" if self.path else name

    def problem(self, name: str, text: str) -> None:
        """Record that the value of ``name`` cannot be used."""
        self.problems.append(f"{self.key(name)}: {text}")

    def only(self, known: tuple[str, ...], where: str = "") -> None:
        """Record every key that is not ``known``; ``where`` is added after 'unknown key'."""
        for name in self.data:
            if name not in known:
                self.problem(name, f"unknown key{where}.{did_you_mean(name, known)}")

    def _value(self, name: str, kinds: tuple[type, ...], wanted: str, required: bool) -> object | None:
        if name not in self.data:
            if required:
                self.problem(name, f"is missing; it must be {wanted}.")
            return None
        value = self.data[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.problem(name, f"must be {wanted}, got {value!r:.80}.")
            return None
        return value

    def text(self, name: str, default: str | None = None, *, choices: tuple[str, ...] = ()) -> str:
        """A non-empty string, one of ``choices`` when given; required without a default."""
        value = self._value(name, (str,), "a text", default is None)
        if not isinstance(value, str):
            return default or ""
        if not value.strip():
            self.problem(name, "must not be empty.")
        elif choices and value not in choices:
            self.problem(name, f'unknown value "{value}"; known: {", ".join(choices)}.{did_you_mean(value, choices)}')
            return default or choices[0]
        return value

    def texts(self, name: str, *, required: bool = False, choices: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of non-empty, distinct strings."""
        value = self._value(name, (list,), "a list of texts", required)
        if not isinstance(value, list):
            return ()
        good = tuple(v for v in value if isinstance(v, str) and v.strip())
        if len(good) != len(value):
            self.problem(name, "must hold non-empty texts only.")
        if len(set(good)) != len(good):
            self.problem(name, "holds a value twice.")
        for word in good:
            if choices and word not in choices:
                self.problem(name, f'unknown value "{word}".{did_you_mean(word, choices)}')
        if required and not value:
            self.problem(name, "must not be empty.")
        return good

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = 1 << 62) -> int:
        """An integer from ``least`` to ``most``; required without a default."""
        value = self._value(name, (int,), "an integer", default is None)
        if not isinstance(value, int):
            return least if default is None else default
        if not least <= value <= most:
            self.problem(name, f"must be {least} or more{f', {most} at most' if most < 1 << 62 else ''}, got {value}.")
            return least if default is None else default
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false; required without a default."""
        value = self._value(name, (bool,), "true or false", default is None)
        return value if isinstance(value, bool) else bool(default)

    def numbers(self, name: str, default: tuple[float, ...] = ()) -> tuple[float, ...]:
        """A finite number or a non-empty list of them."""
        if name not in self.data:
            return default
        value = self.data[name]
        items = value if isinstance(value, list) else [value]
        good = [float(v) for v in items if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
        if not items or len(good) != len(items):
            self.problem(name, f"must be a finite number or a list of them, got {value!r:.80}.")
            return default
        return tuple(good)

    def table(self, name: str, *, required: bool = False) -> Table:
        """A table inside this one; empty when absent."""
        value = self._value(name, (dict,), "a table", required)
        return Table(data=value if isinstance(value, dict) else {}, path=self.key(name), problems=self.problems)

    def tables(self, name: str) -> dict[str, Table]:
        """The tables inside table ``name`` by their names, in order."""
        outer = self.table(name)
        return {key: outer.table(key) for key in outer.data}


def read_toml(path: Path, error: type[TargetError] = TargetError) -> Table:
    """Parse a TOML file.

    Raises:
        TargetError: (or the given class) missing, a folder, larger than 1 MiB, not UTF-8, or not TOML.
    """
    try:
        if path.exists() and not path.is_file():
            raise error(f"{path}: is not a file.", remedy="Give the path of a TOML file.")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as problem:  # ValueError: a null byte in the path
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise error(f"{path}: cannot be read ({reason}).", remedy="Check the path.") from problem
    if len(data) > MAX_BYTES:
        raise error(f"{path}: larger than {MAX_BYTES} bytes, not a description.")
    try:
        return Table(data=tomllib.loads(data.decode("utf-8-sig")))
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text.", remedy="A description is a TOML file in UTF-8.") from problem
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path}: not valid TOML: {problem}.", remedy="Correct the line named above.") from problem
    except RecursionError as problem:
        raise error(f"{path}: nested too deeply.") from problem


def refuse(path: Path, table: Table, remedy: str, error: type[TargetError] = TargetError) -> None:
    """Raise one error that names the file and every problem found in it; do nothing when there is none."""
    if not table.problems:
        return
    if len(table.problems) == 1:
        raise error(f"{path}: {table.problems[0]}", remedy=remedy)
    listed = "".join(f"\n  {p}" for p in table.problems)
    raise error(f"{path}: {len(table.problems)} problems:{listed}", remedy=remedy)
