"""Column: an array in a document, as little-endian bytes in base64; one of a single value says it once."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

WHOLE = ("u1", "u2", "u4")  # the smallest that holds all values is taken
SIGNED = "i4"


@dataclass(frozen=True, eq=False)
class Column:
    """Values of one type, as the page reads them: f4, f8, i4, u4, u2 or u1."""

    values: NDArray[Any]

    @staticmethod
    def of_seconds(values: ArrayLike) -> Column:
        """Times or other numbers of which seven digits are seen."""
        return Column(np.asarray(values, dtype="<f4"))

    @staticmethod
    def exact(values: ArrayLike) -> Column:
        """Numbers of which every digit matters, such as bytes and steps."""
        return Column(np.asarray(values, dtype="<f8"))

    @staticmethod
    def of_whole(values: ArrayLike) -> Column:
        """Whole numbers, in the smallest type that holds them."""
        found = np.asarray(values)
        low, high = (int(found.min()), int(found.max())) if found.size else (0, 0)
        dtype = next((each for each in WHOLE if 0 <= low and high <= np.iinfo(each).max), SIGNED)
        return Column(found.astype("<" + dtype))

    def to_json(self) -> dict[str, Any]:
        """`dtype` and `count` with `base64`, or with the one `value` that all have."""
        found: dict[str, Any] = {"dtype": self.values.dtype.str[1:], "count": int(self.values.size)}
        if self.values.size > 1 and (self.values == self.values[0]).all() and np.isfinite(self.values[0]):
            return {**found, "value": self.values[0].item()}
        return {**found, "base64": base64.b64encode(self.values.tobytes()).decode("ascii")}
