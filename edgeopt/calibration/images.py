"""Folders of images: which files, and one picture to one array. Pictures are hostile: formats and sizes are bounded."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.types import Images
from edgeopt.errors import CalibrationError

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""What may be opened; formats that call another program (EPS) are not among them."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".pbm", ".tif", ".tiff", ".webp", ".gif")
"""Under which such files usually go; a set may name others with glob."""

MAX_PIXELS = 50_000_000
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
COLORS = ("rgb", "bgr", "gray")


def pictures(images: Images, color: str, indices: range) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Yield path and pixels of each image in turn: uint8, height x width x channels (1 for gray)."""
    for index in indices:
        path = images.folder / images.files[index]
        yield str(path), read_picture(path, images, color)


def read_picture(path: Path, images: Images, color: str) -> npt.NDArray[np.uint8]:
    """One image, resized and cropped, as uint8 of height x width x channels.

    Raises:
        CalibrationError: unreadable, not an 8-bit image, too large, or smaller than the crop.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise CalibrationError(f"{path}: {width}x{height} pixels, {MAX_PIXELS} at most.")
            if image.mode.startswith(("I", "F")):
                raise CalibrationError(f"{path}: has more than 8 bits a channel.", remedy="Convert it to 8 bits.")
            picture = image.convert("L" if color == "gray" else "RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        zlib.error,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise CalibrationError(
            f"{path}: not a readable image ({error}).", remedy="Remove the file, or narrow the set with glob."
        ) from error
    method = Image.Resampling[images.interpolation.upper()]
    if images.size is not None:
        picture = picture.resize((images.size[1], images.size[0]), method)
    elif images.resize is not None:
        short = min(picture.size)
        width, height = (images.resize if side == short else images.resize * side // short for side in picture.size)
        picture = picture.resize((width, height), method)
    if images.crop is not None:
        picture = picture.crop(_centre(path, picture.size, images.crop))
    pixels = np.asarray(picture, dtype=np.uint8)
    if color == "gray":
        return pixels[:, :, np.newaxis]
    return pixels[:, :, ::-1] if color == "bgr" else pixels


def _centre(path: Path, size: tuple[int, int], crop: tuple[int, int]) -> tuple[int, int, int, int]:
    (width, height), (crop_height, crop_width) = size, crop
    if crop_width > width or crop_height > height:
        raise CalibrationError(
            f"{path}: {height}x{width} pixels are too few for a crop of {crop_height}x{crop_width}.",
            remedy="Set resize to the crop's longer side or more.",
        )
    left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
    return left, top, left + crop_width, top + crop_height
