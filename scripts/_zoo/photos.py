"""Calibration crops and labelled evaluation crops, as uint8 arrays with their descriptions."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from _zoo import sets
from _zoo.packages import FOOLBOX, SCIKIT_IMAGE, SCIKIT_LEARN, fetch, member, members

SIDE = 224
CALIBRATION_CROPS = 480
CROPS_A_PHOTO = 20

SKIMAGE = (
    "astronaut.png",
    "coffee.png",
    "chelsea.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
    "retina.jpg",
    "grass.png",
    "gravel.png",
    "brick.png",
)
SKLEARN = ("china.jpg", "flower.jpg")

Photo = tuple[Image.Image, int]
"""A photo and its ImageNet-1k class, -1 where it has none."""


def calibration_photos(cache: Path) -> list[Photo]:
    """Photos without labels, none of which is evaluated."""
    skimage, sklearn = fetch(SCIKIT_IMAGE, cache), fetch(SCIKIT_LEARN, cache)
    stored = [member(skimage, f"skimage/data/{name}") for name in SKIMAGE]
    stored += [member(sklearn, f"sklearn/datasets/images/{name}") for name in SKLEARN]
    return [(opened(data), -1) for data in stored]


def evaluation_photos(cache: Path) -> list[Photo]:
    """Twenty photos whose class stands in their name."""
    archive = fetch(FOOLBOX, cache)
    found = []
    for name in members(archive, "foolbox/data/imagenet_", ".jpg"):
        match = re.search(r"_(\d+)\.jpg$", name)
        assert match is not None
        found.append((opened(member(archive, name)), int(match[1])))
    return found


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def centre(photo: Image.Image) -> Image.Image:
    """The usual evaluation crop: short side 256, then the middle."""
    scale = 256 / min(photo.size)
    photo = photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BICUBIC)
    left, top = (photo.width - SIDE) // 2, (photo.height - SIDE) // 2
    return photo.crop((left, top, left + SIDE, top + SIDE))


def random_crop(photo: Image.Image, chance: random.Random, smallest: float) -> Image.Image:
    """A part of at least ``smallest`` of the area, sides 3:4 to 4:3, resized and perhaps mirrored."""
    area = photo.width * photo.height
    for _ in range(50):
        part, ratio = area * chance.uniform(smallest, 1.0), chance.uniform(3 / 4, 4 / 3)
        width, height = round((part * ratio) ** 0.5), round((part / ratio) ** 0.5)
        if width <= photo.width and height <= photo.height:
            break
    else:
        width = height = min(photo.size)
    left, top = chance.randint(0, photo.width - width), chance.randint(0, photo.height - height)
    crop = photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else crop


def calibration_crops(photos: list[Photo]) -> Iterator[Image.Image]:
    """One crop of each photo, then the next of each, so that a prefix covers all photos."""
    chances = [random.Random(1000 + number) for number in range(len(photos))]
    for number in range(CALIBRATION_CROPS):
        at = number % len(photos)
        yield random_crop(photos[at][0], chances[at], 0.3)


def evaluation_crops(photos: list[Photo]) -> Iterator[tuple[Image.Image, int]]:
    """The centres of all photos, then 19 rounds of random crops: sample i is of photo i modulo 20."""
    chances = [random.Random(2000 + number) for number in range(len(photos))]
    for turn in range(CROPS_A_PHOTO):
        for chance, (photo, label) in zip(chances, photos):
            yield (centre(photo) if turn == 0 else random_crop(photo, chance, 0.7)), label


def write_sets(folder: Path, cache: Path, *, model: str, name: str, color: str, mean: list[float], std: float) -> None:
    """Arrays and descriptions for a network with one image input called ``name``."""
    photos = evaluation_photos(cache)
    labelled = list(evaluation_crops(photos))
    np.save(folder / "calib.npy", stacked(list(calibration_crops(calibration_photos(cache))), color))
    np.save(folder / "eval.npy", stacked([crop for crop, _ in labelled], color))
    np.save(folder / "eval-labels.npy", np.array([label for _, label in labelled], np.int64))
    affine = f'layout = "NCHW"\ncolor = "{color}"\nscale = 1\nmean = {mean}\nstd = {std}\n'
    described = "crops of photos of scikit-image and scikit-learn"

    def describe(file: str, what: str, lines: str, array: str) -> None:
        head = f'schema = "edgeopt.set/1"\nname = "{model}-{file}"\ndescription = "{what}"\nkind = "arrays"\n'
        text = f'{head}{lines}\n[inputs.{name}]\nfile = "{array}"\n{affine}'
        (folder / f"{file}.toml").write_text(text, encoding="utf-8")

    describe("calib", f"120 {described}", "limit = 120\n", "calib.npy")
    describe("calib480", f"480 {described}", "", "calib.npy")
    top1 = 'metric = "top1"\nlabels = "eval-labels.npy"\n'
    describe("eval", "20 crops of each of 20 labelled photos of foolbox", top1, "eval.npy")
    for half, start in (("dev", 0), ("final", 1)):
        lines = f"{top1}start = {start}\nstride = 2\n"
        describe(f"eval-{half}", "20 crops of each of 10 of the 20 labelled photos", lines, "eval.npy")
    sets.write_build(folder, ("model.onnx",), ("model.pt2",))


def stacked(crops: list[Image.Image], color: str) -> np.ndarray:
    """uint8 [N,3,224,224] in the network's order of colours."""
    pixels = np.stack([np.asarray(crop) for crop in crops])
    if color == "bgr":
        pixels = pixels[..., ::-1]
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
