"""What is suggested for a word that is not known."""

from __future__ import annotations

import pytest

from edgeopt.errors import did_you_mean

TARGETS = (
    *("host", "intel-n100", "jetson-nano", "jetson-orin-nano", "jetson-orin-nx-16gb", "jetson-thor"),
    *("jetson-xavier-nx", "raspberry-pi-4", "raspberry-pi-5", "x86-avx2", "x86-avx512", "x86-avx512-vnni"),
)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("jetson-oren", ' Did you mean "jetson-orin-nano" or "jetson-orin-nx-16gb"?'),
        ("jetson-orn", ' Did you mean "jetson-orin-nano" or "jetson-orin-nx-16gb"?'),
        ("jetson-orin-nanno", ' Did you mean "jetson-orin-nano"?'),
        ("jetson-tohr", ' Did you mean "jetson-thor"?'),
        ("jetson-nanoo", ' Did you mean "jetson-nano"?'),
        ("raspbery-pi-5", ' Did you mean "raspberry-pi-5"?'),
        ("rasberry-pi", ' Did you mean "raspberry-pi-4" or "raspberry-pi-5"?'),
        ("x86-avx", ' Did you mean "x86-avx2", "x86-avx512" or "x86-avx512-vnni"?'),
        ("x86avx2", ' Did you mean "x86-avx2"?'),
        ("hots", ' Did you mean "host"?'),
        ("n100", ' Did you mean "intel-n100"?'),
        ("coral", ""),
        ("x", ""),
        ("", ""),
    ],
)
def test_the_nearest_names_are_suggested(word: str, said: str) -> None:
    assert did_you_mean(word, TARGETS) == said


def test_of_too_many_that_begin_alike_the_nearest_is_named() -> None:
    known = [f"layer{n}/conv" for n in range(9)] + ["layers"]
    assert did_you_mean("layer", known) == ' Did you mean "layers"?'


def test_a_whole_name_goes_before_a_beginning_that_is_as_near() -> None:
    assert did_you_mean("--taget", ("--target-folder", "--target")) == ' Did you mean "--target"?'
    assert did_you_mean("word", ()) == ""
    assert did_you_mean("word", ("word2", "word2")) == ' Did you mean "word2"?'
