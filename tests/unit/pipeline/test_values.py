"""Values as bytes: equal and of the same types when they come back; damage, other names and other classes refused."""

from __future__ import annotations

import dataclasses
import enum
import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.memory import Footprint
from edgeopt.pipeline import values
from edgeopt.plan import Drift, Step, StepResult
from edgeopt.quantize.ranges import Statistics

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner)
    ),
    max_leaves=20,
)


def through(value: object) -> Any:
    return values.unpack(bytearray(b"".join(values.pack(value, "x"))), "x")


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_a_plain_value_comes_back_equal_and_of_its_type(value: object) -> None:
    found = through(value)
    assert found == value
    assert repr(found) == repr(value)  # True is no 1, 1.0 is no 1, -0.0 is no 0.0


def test_sets_come_back_as_sets() -> None:
    for value in ({"b", "a", ""}, frozenset({1, "1", (2, None)}), set()):
        found = through(value)
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize("number", [math.inf, -math.inf, 5e-324, 0.1, -0.0])
def test_floats_come_back_bit_by_bit(number: float) -> None:
    assert through(number).hex() == number.hex()
    assert math.isnan(through(math.nan))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1", "i4", "?", ">f4"])
def test_arrays_keep_type_shape_and_bytes(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in [(), (0,), (3, 0, 2), (7,), (2, 3, 5)]:
        value = (rng.normal(size=shape) * 50).astype(dtype)
        value = np.asarray(value, order="F")
        found = through([value, value.T])
        for one, other in zip(found, [value, value.T]):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
            one[...] = 0  # what comes back may be added to
    assert type(through(np.float32(2.5))) is np.float32


def test_an_array_that_two_share_is_stored_once_and_comes_back_as_one() -> None:
    array = np.arange(10_000.0)
    assert sum(len(part) for part in values.pack({"a": array, "b": array}, "x")) < 1.1 * array.nbytes
    found = through({"a": array, "b": array})
    assert found["a"] is found["b"]


def test_dataclasses_of_edgeopt_come_back_whole() -> None:
    cost = Footprint(weight_bytes=3, peak_activation_bytes=None, nodes=1)
    drift = Drift(output="y", sqnr_db=math.inf, cosine=1.0, max_abs=0.0)
    step = Step(kind="quantize", name="s", params=MappingProxyType({"a": (1, 2)}))
    result = StepResult(
        step=step, status="kept", reason="r", before=cost, after=cost, drift=(drift,), latency_ratio=None, seconds=0.1
    )
    assert through(result) == dataclasses.replace(result, step=dataclasses.replace(step, params={"a": (1, 2)}))


def test_statistics_go_on_where_they_were() -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.normal(size=(4, 3, 5)).astype(np.float32) * scale for scale in (1, 100))
    seen = Statistics(channel_axis=1)
    seen.add(first)
    again = through(seen)
    for one in (seen, again):
        one.add(second)
    assert (again.minimum, again.maximum) == (seen.minimum, seen.maximum)
    for one, other in zip(again.histogram(), seen.histogram()):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.channel_mean, seen.channel_mean)
    np.testing.assert_array_equal(again.channel_peak, seen.channel_peak)


class _Colour(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class _Foreign:
    value: int


@pytest.mark.parametrize(
    "value", [object(), _Colour.RED, _Foreign(1), np.array([object()]), np.array(["a"]), len, Footprint, {1: {2: 3j}}]
)
def test_what_is_not_held_is_refused(value: object) -> None:
    with pytest.raises(values.UnpackableError):
        values.pack([value], "x")


def test_every_flipped_byte_and_every_cut_is_seen() -> None:
    whole = b"".join(values.pack({"a": np.arange(5.0), "b": (1, "two")}, "x"))
    for index in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[index] ^= 0x40
        with pytest.raises(values.UnreadableError):
            values.unpack(damaged, "x")
    for length in range(0, len(whole), 5):
        with pytest.raises(values.UnreadableError):
            values.unpack(bytearray(whole[:length]), "x")


def test_a_value_of_another_name_is_refused() -> None:
    with pytest.raises(values.UnreadableError, match="another key"):
        values.unpack(bytearray(b"".join(values.pack(1, "x"))), "y")


@pytest.mark.parametrize(
    "name",
    ["os:system", "subprocess:Popen", "edgeopt.model:save", "edgeopt.model:os.path", "edgeopt.plan:Nothing", "", "a:b"],
)
def test_no_class_but_edgeopt_s_own_data_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_named", lambda found: name)
    forged = bytearray(b"".join(values.pack(Footprint(weight_bytes=1, peak_activation_bytes=1, nodes=1), "x")))
    monkeypatch.undo()
    with pytest.raises(values.UnreadableError):
        values.unpack(forged, "x")
