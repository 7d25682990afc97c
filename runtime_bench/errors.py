"""What can go wrong, with the exit code that each failure has on a device."""

from __future__ import annotations

from typing import Optional


class BenchFailure(Exception):  # noqa: N818
    """A measurement could not be made: every process of a subject failed."""

    code = 8


class RuntimeMissing(BenchFailure):
    """The runtime, its version or the wanted provider is not on this machine; the message holds the pip line."""

    code = 6


class VerifyFailure(Exception):  # noqa: N818
    """A bundle is damaged or foreign (code 9), or its runtime is missing or too old (code 6).

    ``remedy``, where there is one of its own, says what to do; the exception's text has it at its end.
    """

    def __init__(self, code: int, message: str, remedy: Optional[str] = None) -> None:
        super().__init__(message if remedy is None else "{}. {}".format(message, remedy))
        self.code = code
        self.message = message
        self.remedy = remedy
