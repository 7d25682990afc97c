"""What the user's own code prints and raises."""

from __future__ import annotations

import sys

import pytest

from edgeopt.errors import CalibrationError, QualityError
from edgeopt.foreign import users_code


def test_what_it_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with users_code("metric mine:score"):
        sys.stdout.write("hello\n")
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("error", "said"), [(RuntimeError("kaboom"), "RuntimeError: kaboom"), (SystemExit(3), "SystemExit: 3")]
)
def test_what_it_raises_is_told_as_its_own(error: BaseException, said: str) -> None:
    with pytest.raises(CalibrationError, match=f"metric mine:score raised {said}"), users_code("metric mine:score"):
        raise error


def test_our_own_errors_and_interrupts_pass() -> None:
    for error in (QualityError("low"), KeyboardInterrupt()):
        with pytest.raises(type(error)), users_code("x"):
            raise error
