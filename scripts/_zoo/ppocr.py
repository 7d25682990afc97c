"""PP-OCR: where text is (det), what it says (rec), and whether it stands on its head (cls). Every dim is open."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from _zoo import sets, text_lines
from _zoo.packages import RAPIDOCR, SCIKIT_IMAGE, check, fetch, member

SHA256 = {
    "PP-OCRv6_det_small.onnx": "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    "PP-OCRv6_rec_small.onnx": "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
}

INPUT = "x"
REC_WIDTH, CLS_WIDTH, DET_SIDE = 320, 192, 320
LINES = 60
REC_TEXT, CLS_TEXT = (22, 26), (14, 40)
"""Characters of a line that fits, about, and the size of its font in pixels."""

REC_ERRORS = (0.0, 0.0035, 0.129)
"""Character error rates of the float network in the three degradations."""

CLS_RIGHT, DET_SHARE = 0.986, 0.106
"""Of the float networks: share of right answers; share of pixels that are text."""

RAW = {"layout": "NCHW", "color": "bgr", "scale": "1/255", "mean": 0.5, "std": 0.5}
LICENCE = "rapidocr 3.10.0, Apache-2.0, which it states for the weights."
TEXTS = "Texts: lee.cor and lee_background.cor of gensim 4.4.0. Do not redistribute them.\n"


def make_rec(folder: Path, cache: Path) -> str:
    """The recognizer; labels are the texts, one a line."""
    _copy(folder, cache, "PP-OCRv6_rec_small.onnx")
    metadata = {entry.key: entry.value for entry in onnx.load(folder / "model.onnx").metadata_props}
    characters = [*metadata["character"].splitlines(), " "]
    (folder / "characters.txt").write_text("\n".join(characters) + "\n", encoding="utf-8")
    for name, corpus, seed in (("calib", "lee_background.cor", 1), ("eval", "lee.cor", 2)):
        texts = text_lines.lines_of(cache, corpus, REC_TEXT[0], LINES)
        lines = list(text_lines.degraded_lines(texts, REC_TEXT[1], seed))
        np.save(folder / f"{name}.npy", np.stack([text_lines.padded(image, REC_WIDTH) for _, image in lines]))
        (folder / f"{name}-labels.txt").write_text("".join(f"{text}\n" for text, _ in lines), encoding="utf-8")
        what = f"{LINES} lines of text in three degradations each"
        metric = {"name": "cer", "charset": "characters.txt"}
        _describe(folder, name, "ppocr-rec", what, metric=metric, labels=f"{name}-labels.txt")
    sets.write_build(folder, ("model.onnx",))
    sets.write_source(folder, f"PP-OCRv6 rec small: {LICENCE}\n{TEXTS}")
    running = sets.session(folder / "model.onnx")
    truth = (folder / "eval-labels.txt").read_text(encoding="utf-8").splitlines()
    found = [text_lines.decoded(running.run(None, {INPUT: x})[0][0], characters) for x in _inputs(folder)]
    rates = [
        text_lines.error_rate(found[start : start + LINES], truth[start : start + LINES])
        for start in range(0, len(truth), LINES)
    ]
    for rate, known in zip(rates, REC_ERRORS):
        sets.expect("the character error rate", rate, known, 0.01)
    return f"{sets.megabytes(folder / 'model.onnx')}, character error rates {', '.join(f'{r:.1%}' for r in rates)}"


def make_cls(folder: Path, cache: Path) -> str:
    """The classifier: upright (0) or turned by 180 degrees (1)."""
    _copy(folder, cache, "ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    for name, corpus, seed in (("calib", "lee_background.cor", 3), ("eval", "lee.cor", 4)):
        texts = text_lines.lines_of(cache, corpus, CLS_TEXT[0], LINES)
        rows = []
        for _, image in text_lines.degraded_lines(texts, CLS_TEXT[1], seed):
            rows += [image, image.transpose(Image.Transpose.ROTATE_180)]
        np.save(folder / f"{name}.npy", np.stack([text_lines.padded(image, CLS_WIDTH) for image in rows]))
        np.save(folder / f"{name}-labels.npy", np.arange(len(rows)) % 2)
        what = f"{LINES} lines of text in three degradations each, upright and turned"
        _describe(folder, name, "ppocr-cls", what, metric="top1", labels=f"{name}-labels.npy")
    sets.write_build(folder, ("model.onnx",))
    sets.write_source(folder, f"PP-OCR mobile 2.0 cls: {LICENCE}\n{TEXTS}")
    running = sets.session(folder / "model.onnx")
    right = [int(running.run(None, {INPUT: x})[0].argmax()) == index % 2 for index, x in enumerate(_inputs(folder))]
    sets.expect("the share of right answers", float(np.mean(right)), CLS_RIGHT, 0.01)
    return f"{sets.megabytes(folder / 'model.onnx')}, top-1 {sum(right)}/{len(right)}"


def make_det(folder: Path, cache: Path) -> str:
    """The detector, on parts of two scanned pages; there are no labels, the float network is the reference."""
    _copy(folder, cache, "PP-OCRv6_det_small.onnx")
    archive = fetch(SCIKIT_IMAGE, cache)
    for name, page, count, seed in (("calib", "page.png", 48, 5), ("eval", "text.png", 24, 6)):
        stored = Image.open(io.BytesIO(member(archive, f"skimage/data/{page}"))).convert("RGB")
        rng = np.random.default_rng(seed)
        np.save(folder / f"{name}.npy", np.stack([_part(stored, rng) for _ in range(count)]))
        _describe(folder, name, "ppocr-det", f"{count} parts of {page} of scikit-image")
    sets.write_build(folder, ("model.onnx", "--shape", f"{INPUT}=1x3x{DET_SIDE}x{DET_SIDE}"))
    sets.write_source(folder, f"PP-OCRv6 det small: {LICENCE}\nPages: scikit-image 0.26.0, see the notes there.\n")
    running = sets.session(folder / "model.onnx")
    shares = [float((running.run(None, {INPUT: x})[0] > 0.3).mean()) for x in _inputs(folder)]
    sets.expect("the share of text", float(np.mean(shares)), DET_SHARE, 0.02)
    return f"{sets.megabytes(folder / 'model.onnx')}, {np.mean(shares):.1%} of the pixels are text"


def _part(page: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """uint8 [3,320,320], BGR: a square of the page, enlarged by 1.7 to 2.5."""
    side = int(rng.integers(128, 172))
    left, top = (int(rng.integers(0, size - side + 1)) for size in page.size)
    part = page.resize((DET_SIDE, DET_SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(part)[..., ::-1].transpose(2, 0, 1))


def _copy(folder: Path, cache: Path, name: str) -> None:
    stored = check(member(fetch(RAPIDOCR, cache), f"rapidocr/models/{name}"), SHA256[name], name)
    (folder / "model.onnx").write_bytes(stored)


def _describe(folder: Path, file: str, model: str, what: str, **settings: object) -> None:
    inputs = {INPUT: {"file": f"{file}.npy", **RAW}}
    sets.describe(folder / f"{file}.toml", name=f"{model}-{file}", description=what, inputs=inputs, settings=settings)


def _inputs(folder: Path) -> list[np.ndarray]:
    """The evaluation set as the network takes it, each [1,3,H,W]."""
    return [(pixels[None].astype(np.float32) / 255 - 0.5) / 0.5 for pixels in np.load(folder / "eval.npy")]
