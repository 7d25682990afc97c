"""Right and wrong by sample: packing, digests, and an interval of the paired drop that covers what it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.outcomes import Outcomes, SampleDigest, pack, paired_drop


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_bits_survive_packing(right: list[bool]) -> None:
    outcomes = Outcomes(kind="top1", samples_sha256="", count=len(right), right=pack(bytearray(right)))
    assert outcomes.bits().tolist() == right
    assert len(outcomes.right) == math.ceil(len(right) / 8)


def test_the_first_sample_is_the_highest_bit() -> None:
    assert pack(bytearray([1, 0, 0, 0, 0, 0, 0, 0, 1])).hex() == "8080"


def digest(*samples: dict[str, np.ndarray], labels: list[int] | None = None) -> str:
    found = SampleDigest()
    for index, feeds in enumerate(samples):
        found.add(feeds, None if labels is None else labels[index])
    return found.hexdigest()


def test_the_digest_of_samples_sees_every_change() -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(1, 6), np.ones((1, 6), np.float32)
    nudged = x.copy()
    nudged[0, 5] = np.nextafter(np.float32(5), np.float32(6))
    seen = [
        digest({"x": x}, {"x": y}),
        digest({"x": y}, {"x": x}),
        digest({"x": x}),
        digest({"x": nudged}, {"x": y}),
        digest({"z": x}, {"x": y}),
        digest({"x": x.reshape(2, 3)}, {"x": y}),
        digest({"x": x.view(np.int32)}, {"x": y}),
        digest({"x": x}, {"x": y}, labels=[0, 1]),
        digest({"x": x}, {"x": y}, labels=[0, 2]),
        digest({"x": x, "y": y}),
    ]
    assert len(set(seen)) == len(seen)
    assert digest({"x": x, "y": y}) == digest({"y": y, "x": np.asfortranarray(x)})


def bits(n: int, lost: int, gained: int) -> tuple[Any, Any]:
    """Right and wrong of two artifacts with so many samples that only the first, only the second answers right."""
    a, b = np.ones(n, bool), np.ones(n, bool)
    b[:lost] = False
    a[lost : lost + gained] = False
    return a, b


def test_a_drop_counts_what_changed() -> None:
    found = paired_drop(*bits(100, 7, 3))
    assert (found.samples, found.lost, found.gained) == (100, 7, 3)
    assert (found.a, found.b, found.drop) == (0.97, 0.93, 0.04)
    assert found.low < 0.04 < found.high
    other = paired_drop(*reversed(bits(100, 7, 3)))
    assert (other.drop, other.low, other.high) == (-0.04, pytest.approx(-found.high), pytest.approx(-found.low))


def test_no_difference_is_no_certainty() -> None:
    """Nothing lost in 100 samples does not show that nothing is ever lost: about 3 in 100 cannot be excluded."""
    found = paired_drop(*bits(100, 0, 0))
    assert found.drop == 0
    assert found.low == -found.high
    assert 0.02 < found.high < 0.04
    assert paired_drop(*bits(10_000, 0, 0)).high < 0.0004


def coverage(n: int, p: float, q: float, interval: Any) -> float:
    """Exact probability that the interval holds the true drop ``p - q``, over all counts of lost and gained samples."""
    total = 0.0
    logs = math.log(p), math.log(q), math.log(1 - p - q)
    for lost in range(min(n, int(n * p + 12 * math.sqrt(n * p) + 12)) + 1):
        for gained in range(min(n - lost, int(n * q + 12 * math.sqrt(n * q) + 12)) + 1):
            low, high = interval(n, lost, gained)
            if low <= p - q <= high:
                rest = n - lost - gained
                ways = math.lgamma(n + 1) - math.lgamma(lost + 1) - math.lgamma(gained + 1) - math.lgamma(rest + 1)
                total += math.exp(ways + lost * logs[0] + gained * logs[1] + rest * logs[2])
    return total


def ours(n: int, lost: int, gained: int) -> tuple[float, float]:
    found = paired_drop(*bits(n, lost, gained))
    return found.low, found.high


def plain(n: int, lost: int, gained: int) -> tuple[float, float]:
    """The mean of the differences and 1.96 standard errors."""
    drop = (lost - gained) / n
    half = 1.96 * math.sqrt(max((lost + gained) / n - drop * drop, 0) / n)
    return drop - half, drop + half


GRID = [(0.002, 0.001), (0.01, 0.005), (0.02, 0.02), (0.05, 0.01), (0.1, 0.02)]


@pytest.mark.parametrize("n", [20, 60, 200])
def test_the_interval_covers_the_true_drop(n: int) -> None:
    assert min(coverage(n, p, q, ours) for p, q in GRID) >= 0.928


def test_the_plain_interval_does_not_so_the_test_can_fail() -> None:
    assert min(coverage(60, p, q, plain) for p, q in GRID) < 0.5
