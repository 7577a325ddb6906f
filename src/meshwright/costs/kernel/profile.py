"""KernelProfile: the fitted curves of one GPU, as the package's data files hold them, with errors, source and licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import rounded
from meshwright.costs.kernel.attention import CONTEXT, GENERATION
from meshwright.costs.kernel.chip import Chip, Columns, FloatArray, Formula
from meshwright.costs.kernel.gemm import GEMM
from meshwright.costs.kernel.grid import CorrectionGrid
from meshwright.costs.kernel.moe import MOE
from meshwright.specs.error import SpecError

SCHEMA_VERSION = 1
DIGITS = 4  # more than the measurements carry; tables of corrections have three decimals
FORMULAS: Mapping[str, Formula] = {formula.name: formula for formula in (GEMM, CONTEXT, GENERATION, MOE)}
FAR = 2.0  # a size up to this factor outside the measured range still counts as inside


@dataclass(frozen=True)
class KernelCurve:
    """One kind of kernel in one number format on one chip.

    Attributes:
        formula: name in FORMULAS.
        dtype: the format in the words of the table (bfloat16, fp8, fp8_block).
        constants: fitted, by name.
        grid: correction of what the formula leaves.
        ranges: least and largest measured size, by name.
        median_error, p80_error: of shapes that were kept out of the fit (a fraction of the measured time).
        bias: median of predicted / measured - 1 on those shapes.
        formula_error: median error of those shapes without the correction.
        num_shapes: measured in all.
    """

    formula: str
    dtype: str
    constants: Mapping[str, float]
    grid: CorrectionGrid
    ranges: Mapping[str, tuple[float, float]]
    median_error: float = 0.0
    p80_error: float = 0.0
    bias: float = 0.0
    formula_error: float = 0.0
    num_shapes: int = 0

    def seconds(self, chip: Chip, columns: Columns) -> FloatArray:
        """Seconds [R] of the shapes in `columns` on `chip`."""
        formula = FORMULAS[self.formula]
        return formula.seconds(self.constants, chip, columns) * self.grid.factor(formula.place(columns))

    def are_inside(self, columns: Columns) -> NDArray[np.bool_]:
        """Of every row: is each size of it measured, or within a factor FAR of what was?"""
        found = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for name, (low, high) in self.ranges.items():
            if name in columns:
                found &= (columns[name] >= low / FAR) & (columns[name] <= high * FAR)
        return found


@dataclass(frozen=True)
class Streaming:
    """Operators bound by memory: overhead_s + bytes / (efficiency * bandwidth), fitted; `error` is the median left."""

    efficiency: float
    overhead_s: float
    error: float
    num_rows: int


@dataclass(frozen=True)
class KernelProfile:
    """Everything fitted for one chip. `streaming` is by operator (add, activation, norm, ...).

    `lender`: the chip whose curves these are, moved to few kernels of this one (`borrowed`); empty where its own were fitted.
    `attention_backward`: seconds of attention's backward over those of its forward; None where nobody measured it.
    """

    chip: Chip
    curves: tuple[KernelCurve, ...]
    streaming: Mapping[str, Streaming]
    source: str
    licence: str
    lender: str = ""
    attention_backward: float | None = None

    def curve(self, formula: str, dtype: str) -> KernelCurve | None:
        """The curve of a kind and format; None where it was not measured."""
        found = [curve for curve in self.curves if curve.formula == formula and curve.dtype == dtype]
        return found[0] if found else None

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data."""
        data = rounded(asdict(self), DIGITS)
        for curve in data["curves"]:
            curve["grid"]["values"] = [round(value, 3) for value in curve["grid"]["values"]]
        return {"schema": "meshwright-kernels", "version": SCHEMA_VERSION, **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KernelProfile:
        """From plain data. Raises SpecError on another schema, a newer version, or an unknown formula."""
        if data.get("schema") != "meshwright-kernels" or data.get("version") != SCHEMA_VERSION:
            raise SpecError(
                f"kernel profile of schema {data.get('schema')!r} version {data.get('version')!r}",
                allowed=f"meshwright-kernels, version {SCHEMA_VERSION}",
            )
        return cls(
            chip=Chip(**data["chip"]),
            curves=tuple(_curve(item) for item in data["curves"]),
            streaming={name: Streaming(**item) for name, item in data["streaming"].items()},
            source=data["source"],
            licence=data["licence"],
        )


class Shape(NamedTuple):
    """What one of a profile's curves is asked for: sizes in a format; `suffix` is of the curve's name."""

    formula: str
    dtype: str
    sizes: Mapping[str, float]
    profile: KernelProfile
    suffix: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for shapes that take equally long."""
        return self.formula, self.dtype, self.profile.chip.name, self.suffix, *self.sizes.values()


def _curve(data: Mapping[str, Any]) -> KernelCurve:
    if data["formula"] not in FORMULAS:
        raise SpecError(f"kernel formula {data['formula']!r} is not known", allowed=", ".join(FORMULAS))
    nodes = tuple(tuple(axis) for axis in data["grid"]["nodes"])
    grid = CorrectionGrid(nodes, tuple(data["grid"]["values"]))
    ranges = {name: (low, high) for name, (low, high) in data["ranges"].items()}
    return KernelCurve(**{**data, "grid": grid, "ranges": ranges})
