"""Borrowed profiles: a chip of which only some kernels were published, priced by another's curves, moved to them.

A lender's curve is evaluated with the chip's own units, peaks and bandwidth; the median of measured over that moves it, one
factor a formula and format. Sizes keep the lender's shape, so what is far from the published ones is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.costs.kernel.chip import Chip, FloatArray
from meshwright.costs.kernel.profile import FORMULAS, KernelCurve, KernelProfile, Streaming
from meshwright.specs.error import SpecError

BORROWED_SCHEMA, BORROWED_VERSION = "meshwright-borrowed-kernels", 1
MICRO = 1e-6
# Formats of curves -> bytes of an element, and the format whose peak it runs at.
FORMATS: Mapping[str, tuple[float, str]] = {
    "bfloat16": (2.0, "bfloat16"),
    "fp8": (1.0, "float8"),
    "fp8_block": (1.0, "float8"),
}
# What published rows do not say, as formulas need it: plain products, whole causal sequences.
ASSUMED: Mapping[str, Mapping[str, float]] = {
    "gemm": {"extra_bytes": 0.0},
    "context_attention": {"window": 0.0, "is_causal": 1.0},
}
STREAM_OVERHEAD_S, STREAM_ERROR = 3e-6, 0.15  # of a memory-bound kernel where only a copy was measured


class _Moved(NamedTuple):
    """A lender's curve on another chip, and measured seconds of it in one direction: their sizes, and measured over curve."""

    curve: KernelCurve
    ranges: Mapping[str, tuple[float, float]]
    ratios: FloatArray

    @property
    def factor(self) -> float:
        return float(np.median(self.ratios))

    def on_chip(self) -> KernelCurve:
        """The curve moved by the median, with the errors that are left."""
        left = self.factor / self.ratios - 1.0
        grid = self.curve.grid
        moved = tuple(value + float(np.log(self.factor)) for value in grid.values)
        return replace(
            self.curve, grid=replace(grid, values=moved), ranges=self.ranges, bias=float(np.median(left)),
            median_error=float(np.median(np.abs(left))), p80_error=float(np.quantile(np.abs(left), 0.8)),
            formula_error=abs(1.0 / self.factor - 1.0), num_shapes=len(self.ratios),
        )  # fmt: skip


def borrowed_profile(data: Mapping[str, Any], lender: KernelProfile) -> KernelProfile:
    """The profile of a chip from its published kernels and a lender's curves.

    Raises SpecError on another version, and for kernels of which the lender has no curve.
    """
    if data["version"] != BORROWED_VERSION:
        raise SpecError(
            f"borrowed kernels of version {data['version']!r}", allowed=f"version {BORROWED_VERSION}"
        )
    chip = Chip(**data["chip"])
    moved = {
        (each["formula"], each["dtype"], each["phase"]): _moved(each, chip, lender)
        for each in data["kernels"]
    }
    curves = tuple(each.on_chip() for (*_, phase), each in moved.items() if phase == "forward")
    attention = ("context_attention", "bfloat16")
    forward, backward = (moved[*attention, phase].factor for phase in ("forward", "backward"))
    stream = Streaming(data["memory"]["efficiency"], STREAM_OVERHEAD_S, STREAM_ERROR, 1)
    sources = dict.fromkeys([*(each["source"] for each in data["kernels"]), data["memory"]["source"]])
    return KernelProfile(
        chip, curves, {"add": stream, "activation": stream}, "; ".join(sources), data["licence"],
        lender=lender.chip.name, attention_backward=backward / forward,
    )  # fmt: skip


def _moved(kernels: Mapping[str, Any], chip: Chip, lender: KernelProfile) -> _Moved:
    formula, dtype = kernels["formula"], kernels["dtype"]
    curve = lender.curve(formula, dtype)
    if curve is None:
        raise SpecError(
            f"{lender.chip.name} has no curve of {formula} in {dtype} to lend",
            allowed=", ".join(f"{each.formula} {each.dtype}" for each in lender.curves),
        )
    *names, unit = kernels["columns"]
    if unit != "us" or set(names) - {*FORMULAS[formula].sizes}:
        raise SpecError(f"columns of published kernels are {kernels['columns']}", allowed="sizes, then us")
    rows = np.asarray(kernels["rows"], dtype=np.float64)
    sizes = {name: rows[:, i] for i, name in enumerate(names)}
    element_bytes, peak = FORMATS[dtype]
    same = {**ASSUMED[formula], "element_bytes": element_bytes, "peak": chip.flops_per_s[peak]}
    if (
        "cast_bytes" in curve.constants
    ):  # published without the casts that the lender's tables time with a product
        curve = replace(curve, constants={**curve.constants, "cast_bytes": 0.0})
    columns = {**sizes, **{name: np.full(len(rows), value) for name, value in same.items()}}
    ranges = {name: (float(values.min()), float(values.max())) for name, values in sizes.items()}
    return _Moved(curve, ranges, rows[:, -1] * MICRO / curve.seconds(chip, columns))
