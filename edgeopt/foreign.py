"""Code of the user's own, run in this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from edgeopt.errors import CalibrationError, EdgeoptError


@contextlib.contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run it: what it prints goes to stderr, because stdout is for results, and what it raises is told as its own.

    Args:
        what: names it in the error, e.g. ``"metric mine:score"``.

    Raises:
        CalibrationError: it raised something, SystemExit included.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except EdgeoptError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise CalibrationError(f"{what} raised {said}", remedy="This is code of yours: run it alone.") from error
