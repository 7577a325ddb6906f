"""Fits the constants of a kernel formula, then the small table of what it leaves; measures both on held-out shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.costs.kernel.chip import Chip, ChipConstant, FloatArray
from meshwright.costs.kernel.grid import CorrectionGrid, corners
from meshwright.costs.kernel.profile import FORMULAS, KernelCurve

from .kernel_table import KernelTable

MOST_ROWS = 1200  # that the constants are fitted on, evenly taken; the correction sees all
ERROR_SCALE = 0.1  # logarithmic errors beyond this count linearly, so that odd rows do not bend the constants
SMOOTHNESS = 0.3  # weight of squared second differences of the table against squared errors of rows
TOWARDS_NONE = 0.02  # weight of the table's own squares: without rows the formula stands uncorrected
PASSES = 4  # of reweighting


@dataclass(frozen=True)
class KernelScore:
    """Errors of predicted over measured seconds: median and 80th percentile of the size, and the median itself."""

    median: float
    p80: float
    bias: float


def score(predicted: FloatArray, measured: FloatArray) -> KernelScore:
    """Of relative errors, predicted / measured - 1."""
    error = predicted / measured - 1.0
    size = np.abs(error)
    return KernelScore(float(np.median(size)), float(np.quantile(size, 0.8)), float(np.median(error)))


def fit_curve(table: KernelTable, chip: Chip) -> KernelCurve:
    """The curve on all shapes, with the errors of a curve fitted on the first half and tested on the other."""
    half = table.first_half
    tested = table.rows(~half)
    trial = _fit(table.rows(half), chip)
    final = _fit(table, chip)
    formula = FORMULAS[table.formula]
    errors = score(trial.seconds(chip, tested.columns), tested.seconds)
    bare = score(formula.seconds(trial.constants, chip, tested.columns), tested.seconds)
    ranges = {
        name: (float(table.columns[name].min()), float(table.columns[name].max())) for name in formula.sizes
    }
    return KernelCurve(
        table.formula, table.dtype, final.constants, final.grid, ranges, errors.median, errors.p80, errors.bias,
        bare.median, len(table.seconds),
    )  # fmt: skip


def half_fitted(table: KernelTable, chip: Chip) -> KernelCurve:
    """The curve of the first half of the shapes only, for tests on the other half."""
    return _fit(table.rows(table.first_half), chip)


def _fit(table: KernelTable, chip: Chip) -> KernelCurve:
    constants = fit_constants(table, chip)
    formula = FORMULAS[table.formula]
    left = np.log(table.seconds / formula.seconds(constants, chip, table.columns))
    grid = fit_grid(formula.nodes, formula.place(table.columns), left)
    return KernelCurve(table.formula, table.dtype, constants, grid, {})


def _fitted(table: KernelTable) -> list[ChipConstant]:
    """The constants that this table can tell: nothing is cast where all is bfloat16."""
    is_cast = not table.dtype.startswith("bfloat16")
    return [item for item in FORMULAS[table.formula].constants if is_cast or item.name != "cast_bytes"]


def fit_constants(table: KernelTable, chip: Chip) -> Mapping[str, float]:
    """Constants within their physical ranges that minimise the soft absolute logarithmic error."""
    from scipy.optimize import least_squares

    some = np.zeros(len(table.seconds), dtype=np.bool_)
    some[:: max(1, len(some) // MOST_ROWS)] = True
    part, formula, items = table.rows(some), FORMULAS[table.formula], _fitted(table)

    def errors(logs: FloatArray) -> FloatArray:
        constants = {item.name: float(np.exp(x)) for item, x in zip(items, logs, strict=True)}
        return np.asarray(np.log(formula.seconds(constants, chip, part.columns) / part.seconds))

    low, high, start = (np.log([getattr(item, end) for item in items]) for end in ("low", "high", "start"))
    found = least_squares(
        errors, start, bounds=(low, high), loss="soft_l1", f_scale=ERROR_SCALE, diff_step=1e-3, max_nfev=40
    )
    return {item.name: float(np.exp(x)) for item, x in zip(items, found.x, strict=True)}


def fit_grid(nodes: tuple[tuple[float, ...], ...], points: FloatArray, left: FloatArray) -> CorrectionGrid:
    """The table of log factors nearest to `left` [R] at `points` [R, D], smooth, and zero where nothing is known."""
    from scipy.sparse import csr_matrix

    indices, weights = corners(nodes, points)
    size = int(np.prod([len(axis) for axis in nodes]))
    rows = np.repeat(np.arange(len(left)), indices.shape[1])
    design = csr_matrix((weights.ravel(), (rows, indices.ravel())), shape=(len(left), size))
    penalty = SMOOTHNESS * _roughness(nodes) + TOWARDS_NONE * np.eye(size)
    trust = np.ones(len(left))
    values = np.zeros(size)
    for _ in range(PASSES):
        weighted = design.multiply(trust[:, None]).tocsr()
        values = np.linalg.solve((design.T @ weighted).toarray() + penalty, weighted.T @ left)
        trust = ERROR_SCALE / np.maximum(np.abs(left - design @ values), ERROR_SCALE)
    return CorrectionGrid(nodes, tuple(float(value) for value in values))


def _roughness(nodes: tuple[tuple[float, ...], ...]) -> FloatArray:
    """Sum over dimensions of the squared second differences (first ones of an axis with two nodes), [N, N]."""
    sizes = [len(axis) for axis in nodes]
    total = np.zeros((int(np.prod(sizes)),) * 2)
    for axis, size in enumerate(sizes):
        step = np.diff(np.eye(size), n=min(2, size - 1), axis=0)
        before, after = int(np.prod(sizes[:axis])), int(np.prod(sizes[axis + 1 :]))
        total += np.kron(np.kron(np.eye(before), step.T @ step), np.eye(after))
    return total
