"""Digits drawn with numpy: seven strokes of a display, moved, scaled, blurred and under noise. No data are kept.

Shapes: N images of SIDE x SIDE numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDE, NOISE, BLUR = (
    16,
    0.35,
    1.2,
)  # pixels a side; standard deviation of the noise; width of a stroke in pixels
# Ends of the strokes in a box of height 2 and width 1: (row, column) to (row, column).
STROKES = (
    ((0, 0), (0, 1)), ((0, 0), (1, 0)), ((0, 1), (1, 1)), ((1, 0), (1, 1)),
    ((1, 0), (2, 0)), ((1, 1), (2, 1)), ((2, 0), (2, 1)),
)  # fmt: skip
# Which strokes a digit has.
DIGITS = (
    (0, 1, 2, 4, 5, 6), (2, 5), (0, 2, 3, 4, 6), (0, 2, 3, 5, 6), (1, 2, 3, 5),
    (0, 1, 3, 5, 6), (0, 1, 3, 4, 5, 6), (0, 2, 5), (0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 5, 6),
)  # fmt: skip


def drawn_digits(number: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [N, SIDE, SIDE] and what they show, by a seed."""
    draws = np.random.default_rng(seed)
    shown = draws.integers(len(DIGITS), size=number)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    images = np.zeros((number, SIDE, SIDE))
    for image, digit in zip(images, shown, strict=True):
        height, slant = draws.uniform(3.0, 5.5), draws.uniform(-0.3, 0.3)
        top, left = draws.uniform(2.0, SIDE - 2.0 - 2 * height), draws.uniform(4.0, SIDE - 4.0 - height)
        for place in DIGITS[digit]:
            one, other = (
                np.array((top + height * row, left + height * column - slant * height * (row - 1)))
                for row, column in STROKES[place]
            )
            image += np.exp(-((_distance(rows, columns, one, other) / BLUR) ** 2))
    return (images + NOISE * draws.normal(size=images.shape)).astype(np.float32), shown


def _distance(
    rows: NDArray[np.int64], columns: NDArray[np.int64], one: NDArray[np.float64], other: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of every pixel to a stroke."""
    along = other - one
    share = ((rows - one[0]) * along[0] + (columns - one[1]) * along[1]) / (along @ along)
    share = np.clip(share, 0.0, 1.0)
    found: NDArray[np.float64] = np.hypot(
        rows - one[0] - share * along[0], columns - one[1] - share * along[1]
    )
    return found
