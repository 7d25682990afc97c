"""The report as a person sees it: a real browser draws it, wide and narrow, without a script or a request."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeopt.pipeline import Request, build

NET = Path(__file__).parents[2] / "calibration" / "fashion-mnist.onnx"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the Debian package chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("picture") / "out"
    return build(Request(model=NET, target="raspberry-pi-5", out=out, seconds=5)).root / "report.html"


def browse(page: Path, profile: Path, *options: str) -> str:
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
        f"--user-data-dir={profile}",
        *options,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fills_its_window_and_is_not_cut(width: int, report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    browse(report, tmp_path / "profile", f"--window-size={width},2400", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("L"), np.int16)
    assert pixels.shape == (2400, width) or width < 500  # the browser has a smallest window
    ink = np.abs(pixels - np.median(pixels)) > 40
    assert 0.01 < ink.mean() < 0.5
    rows = np.flatnonzero(ink.any(axis=1))
    assert rows[0] < 200
    assert rows[-1] > 2000
    # Nothing touches the right edge: no table or chart is wider than the page.
    assert not ink[:, -2:].any()


def test_the_page_says_what_shipped(report: Path, tmp_path: Path) -> None:
    text = browse(report, tmp_path / "profile", "--dump-dom")
    for words in ("Not measured on the target", "int8 ships", "raspberry-pi-5", "What stayed float"):
        assert words in text
