"""The made-up measurement has the shape of a real one, so that what the report shows of it can be had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_bench import Subject, measure
from runtime_bench.audit import from_profile

from . import recorded

OWN = ("missing", "results", "audit", "growth", "samples")
"""Parts whose keys depend on the machine, on the runtime or on the time that there was."""


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """A quick measurement of a runner without a runtime."""
    subject = Subject("int8", "spin:200us", "a" * 64, runner="null", precision="int8")
    return measure([subject], [{}], effort="quick", seconds=1.5)


def shape(value: Any, path: str = "") -> set[str]:
    """Every key of a tree; of lists the first entry counts."""
    if isinstance(value, list):
        return shape(value[0], f"{path}[]") if value else set()
    if not isinstance(value, dict):
        return set()
    found = {f"{path}/{key}" for key in value}
    for key, inner in value.items():
        found |= shape(inner, f"{path}/{key}") if key not in OWN else set()
    return found


def test_the_made_up_measurement_has_the_keys_of_a_real_one(real: dict[str, Any]) -> None:
    made = json.loads(json.dumps(recorded.measurement()))
    assert shape(made) | {"/results"} == shape(json.loads(json.dumps(real))) | {"/results"}
    del made["subjects"][0]["processes"][0]["steady_begin_ns"]
    assert shape(made) | {"/results"} != shape(real) | {"/results"}


def test_the_made_up_audit_has_the_keys_of_a_real_one() -> None:
    assert set(recorded.measurement()["subjects"][0]["audit"]) == set(from_profile([], "CPUExecutionProvider"))
