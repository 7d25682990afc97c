"""scripts/zoo: foreign pickles rebuild arrays only, crops come in an order that any prefix can use."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.loaders.programs import Mark

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.mark.needs_torch
def test_the_weights_of_squeezenet_may_only_hold_arrays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from _zoo.packages import FetchError
    from _zoo.squeezenet import ArraysOnly

    arrays = {"conv1": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)]}
    stored = pickle.dumps(arrays, 3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    read = ArraysOnly(io.BytesIO(stored), encoding="latin1").load()
    np.testing.assert_array_equal(read["conv1"][0], arrays["conv1"][0])
    with pytest.raises(FetchError, match="system, which is not an array"):
        ArraysOnly(io.BytesIO(pickle.dumps(Mark(tmp_path / "mark")))).load()
    assert not (tmp_path / "mark").exists()


def test_crops_are_seeded_and_interleaved() -> None:
    from _zoo import photos

    sources = [(Image.new("RGB", (300, 260), (40 * i, 0, 0)), i) for i in range(5)]
    crops = [(np.asarray(crop), label) for crop, label in photos.evaluation_crops(sources)]
    assert [label for _, label in crops] == [i % 5 for i in range(100)]
    assert all(pixels.shape == (224, 224, 3) and pixels[0, 0, 0] == 40 * label for pixels, label in crops)
    noisy = np.random.default_rng(0).integers(0, 256, (260, 300, 3), np.uint8)
    first, again = (
        [np.asarray(c) for c, _ in photos.evaluation_crops([(Image.fromarray(noisy), 0)])] for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    assert len({crop.tobytes() for crop in first}) == photos.CROPS_A_PHOTO


def test_a_package_with_another_hash_is_refused() -> None:
    from _zoo.packages import FetchError, check, sha256

    assert check(b"data", sha256(b"data"), "file") == b"data"
    with pytest.raises(FetchError, match=r"file has the sha256 .* expected 00"):
        check(b"data", "00", "file")


def test_an_unknown_network_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    from _zoo.main import main

    with pytest.raises(SystemExit) as caught:
        main(["mobilenet"], "usage")
    assert caught.value.code == 2
    assert "efficientnet-lite0" in capsys.readouterr().err
