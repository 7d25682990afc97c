"""Lines of text drawn and degraded as a bad scan does it, and what a recognizer's answer is worth."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from _zoo.packages import GENSIM, fetch, member

HEIGHT, MARGIN = 48, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Degraded:
    """Scaled down by ``scale``, Gaussian noise of standard deviation ``noise`` added, stored as JPEG."""

    scale: float = 1.0
    noise: float = 0.0
    jpeg_quality: int | None = None


DEGRADATIONS = (Degraded(), Degraded(scale=0.35, noise=12), Degraded(scale=0.28, noise=16, jpeg_quality=40))


def lines_of(cache: Path, corpus: str, longest: int, count: int) -> list[str]:
    """The first lines of a corpus of gensim, its ASCII words set in lines of at most ``longest`` characters."""
    text = member(fetch(GENSIM, cache), f"gensim/test/test_data/{corpus}").decode("latin-1")
    found, line = [], ""
    for word in text.split():
        if not word.isascii() or len(word) > longest:
            continue
        if len(line) + 1 + len(word) > longest:
            found.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return found[:count]


def drawn(text: str, how: Degraded, font_size: int, rng: np.random.Generator) -> Image.Image:
    """Black on white, 48 pixels high, degraded, and scaled back to that height."""
    font = ImageFont.load_default(font_size)
    image = Image.new("RGB", (round(font.getlength(text)) + 2 * MARGIN, HEIGHT), (255, 255, 255))
    ImageDraw.Draw(image).text((MARGIN, HEIGHT // 2), text, fill=(0, 0, 0), font=font, anchor="lm")
    if how.scale != 1:
        small = (round(image.width * how.scale), round(HEIGHT * how.scale))
        image = image.resize(small, Image.Resampling.BILINEAR)
    if how.noise:
        noisy = np.asarray(image) + rng.normal(0, how.noise, (image.height, image.width, 3))
        image = Image.fromarray(np.clip(np.rint(noisy), 0, 255).astype(np.uint8))
    if how.jpeg_quality is not None:
        stored = io.BytesIO()
        image.save(stored, "JPEG", quality=how.jpeg_quality)
        image = Image.open(stored).convert("RGB")
    return image.resize((round(HEIGHT * image.width / image.height), HEIGHT), Image.Resampling.BILINEAR)


def padded(image: Image.Image, width: int) -> np.ndarray:
    """uint8 [3,48,width], BGR, at the left on grey; 128 is the raw value nearest to the padding of 0 used in training.

    An image that is too wide is squeezed.
    """
    if image.width > width:
        image = image.resize((width, HEIGHT), Image.Resampling.BILINEAR)
    canvas = np.full((HEIGHT, width, 3), 128, np.uint8)
    canvas[:, : image.width] = np.asarray(image)[..., ::-1]
    return np.ascontiguousarray(canvas.transpose(2, 0, 1))


def decoded(scores: np.ndarray, characters: Sequence[str]) -> str:
    """The text of ``[steps, classes]`` by best path: repeats merged, blanks (class 0) left out."""
    best = scores.argmax(-1)
    kept = [c for c, before in zip(best, np.concatenate(([0], best[:-1]))) if c != before and c != 0]
    return "".join(characters[c - 1] for c in kept)


def edits(found: str, wanted: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(wanted) + 1))
    for i, one in enumerate(found, 1):
        row, above = [i], row
        for j, other in enumerate(wanted, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (one != other)))
    return row[-1]


def error_rate(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Edits over characters, of all texts together."""
    return sum(map(edits, found, wanted)) / sum(map(len, wanted))


def degraded_lines(texts: Sequence[str], font_size: int, seed: int) -> Iterator[tuple[str, Image.Image]]:
    """Every text in every degradation: all of the first, then all of the second."""
    rng = np.random.default_rng(seed)
    for how in DEGRADATIONS:
        for text in texts:
            yield text, drawn(text, how, font_size, rng)
