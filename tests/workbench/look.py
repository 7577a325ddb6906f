"""A page as a picture, and how much of one looks other than another: not letter by letter, but by patches of colour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LOOKS = Path(__file__).parent / "looks"
MOST_WIDTH = 800  # pixels of a kept picture
COLOURS = 64  # of a kept picture: a few areas, and letters
PATCH, STEP, REACH = (
    16,
    4,
    8,
)  # pixels: a square whose mean colour is compared, where squares begin, how far one may move
OTHER_COLOUR = (
    8.0  # between mean colours, out of 255 in each channel: a patch with letters of another font has less
)
MOST_GROWTH = 0.05  # of the height: lines of text break elsewhere
Pixels = NDArray[np.float64]


def drawn(page: Any) -> Image.Image:
    """All of a page, as wide as its device pixels say."""
    return Image.open(io.BytesIO(page.screenshot(full_page=True, animations="disabled"))).convert("RGB")


def kept(name: str) -> Path:
    """Where a picture is."""
    return LOOKS / f"{name}.png"


def keep(picture: Image.Image, name: str) -> None:
    """As a small file."""
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(kept(name), optimize=True)


def otherwise(one: Image.Image, other: Image.Image) -> float:
    """The share of patches that are nowhere near where they were: 0 to 1; 1 where the sizes are of different pages."""
    height = min(one.height, other.height)
    if one.width != other.width or abs(one.height - other.height) > MOST_GROWTH * height:
        return 1.0
    before, now = (
        _means(np.asarray(each.convert("RGB"), dtype=np.float64)[:height]) for each in (one, other)
    )
    reach, every = REACH // STEP, PATCH // STEP
    rows, columns = (np.arange(reach, size - reach, every) for size in before.shape[:2])
    wanted = before[np.ix_(rows, columns)]
    moves = [(down, right) for down in range(-reach, reach + 1) for right in range(-reach, reach + 1)]
    apart = [np.abs(now[np.ix_(rows + down, columns + right)] - wanted).max(axis=2) for down, right in moves]
    return float((np.min(apart, axis=0) > OTHER_COLOUR).mean())


def _means(pixels: Pixels) -> Pixels:
    """The mean colour of the squares that begin at every STEP pixels."""
    sums = np.pad(pixels.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0), (0, 0)))
    squares = sums[PATCH:, PATCH:] - sums[:-PATCH, PATCH:] - sums[PATCH:, :-PATCH] + sums[:-PATCH, :-PATCH]
    return squares[::STEP, ::STEP] / PATCH**2
