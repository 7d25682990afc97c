"""Each output has a limit of its own where the bundle states them; an older bundle binds the worst one alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import runtime_bench
from runtime_bench.golden import pooled_sqnr_db, sqnr_by_output_db

Bundle = Any


def test_by_output_and_pooled() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 50)).astype(np.float32)
    noisy = [a + 0.01 * rng.standard_normal(a.shape).astype(np.float32), b * np.float32(1.1)]
    references = [[a[k], b[k]] for k in range(3)]
    found = sqnr_by_output_db(references, [[noisy[0][k], noisy[1][k]] for k in range(3)])
    assert found[0] == pytest.approx(10 * math.log10((a**2).sum() / ((noisy[0] - a) ** 2).sum()), abs=1e-3)
    assert found[1] == pytest.approx(20, abs=1e-3)
    assert pooled_sqnr_db(references, [[noisy[0][k], noisy[1][k]] for k in range(3)]) == min(found)


def test_the_limit_of_one_output_decides(bundle: Bundle) -> None:
    (before,) = (a for a in runtime_bench.verify_bundle(bundle.root)["artifacts"] if a["precision"] == "int8")
    assert before["outputs"][0]["tolerance_db"] == 30.0  # no list: the one limit
    bundle.manifest["golden"]["tolerance"]["int8"]["outputs_db"] = [before["sqnr_db"] + 1]
    bundle.seal()
    result = runtime_bench.verify_bundle(bundle.root)
    (check,) = (c for c in result["checks"] if c["name"] == "golden model/m.int8.onnx")
    assert not result["ok"]
    assert not check["ok"]
    assert check["detail"].startswith(f"y: SQNR {before['sqnr_db']:.1f} dB against float, at least")


@pytest.mark.parametrize("value", [[], [1.0, 2.0], ["a"], [True], [None], {}, 30.0, "30"])
def test_a_damaged_list_is_refused(bundle: Bundle, value: object) -> None:
    bundle.manifest["golden"]["tolerance"]["int8"]["outputs_db"] = value
    bundle.seal()
    with pytest.raises(runtime_bench.VerifyFailure) as caught:
        runtime_bench.verify_bundle(bundle.root)
    assert caught.value.code == 9
    assert "outputs_db is not one number for each output" in caught.value.message
