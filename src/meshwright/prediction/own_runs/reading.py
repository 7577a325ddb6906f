"""Reading: one way to explain why measured steps are not as predicted, fitted to runs, with its evidence.

The logarithm of measured over predicted is a sum of
    - the logarithm of the step with each kind of work slower or faster by a factor, all of it by another (the level), and
      by one more each time the nodes double; the step is at least what the host takes to launch its kernels, some times
      the gaps between them, which grow with tensor groups and where pipelines are (a smooth maximum of both);
    - what goes with the layout: a Gaussian process over `TRAITS` (Rasmussen and Williams 2006, chapter 2);
    - scatter: Student's t (O'Hagan 1979), since a run that met a bad network says little of its stack.
Logarithms of factors are Gaussian a priori; the level's, which may be anywhere, has Student's distribution. The most
probable ones are found by Gauss-Newton with Student's weights anew in each round, the evidence by Laplace's approximation
there (MacKay 1992, Neural Computation 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.prediction.own_runs.run_table import KINDS, Floats, RunTable

LEVEL, NODES, FLOOR, FLOOR_TP, FLOOR_PP = "level", "nodes", "floor", "floor_tp", "floor_pp"
COORDINATES = (LEVEL, *KINDS, NODES, FLOOR, FLOOR_TP, FLOOR_PP)
OF_FLOOR = len(COORDINATES) - 3  # the first coordinate of the host's floor
HOST = KINDS.index("host")
SHARPNESS = 8.0  # of the smooth maximum: where device and host take as long, the step takes 9 % longer
ROUNDS = 12  # of Gauss-Newton; it converges in half of these
MOST_MOVE = 1.0  # of a logarithm in one round
LEVEL_FREEDOM = (
    4.0  # of Student's distribution of the level: a stack may be twice as slow, if its runs agree on it
)


@dataclass(frozen=True, eq=False)
class Reading:
    """One explanation, before any run is seen.

    Attributes:
        name: for people.
        spreads: float64 [C], standard deviations of the coordinates' logarithms; 0: it stays as predicted.
        floor: what the host takes to launch a step's kernels over the gaps between them, expected; 0: nothing.
        layout, reach: standard deviation of what goes with the layout, and the distance in traits at which it fades.
        scatter, freedom: scale and degrees of freedom of Student's t.
    """

    name: str
    spreads: Floats
    floor: float
    layout: float
    reach: float
    scatter: float
    freedom: float

    def expected(self, at: Floats, table: RunTable) -> tuple[Floats, Floats]:
        """Logarithms [..., R] of measured over predicted at coordinates [..., C], and their slopes [..., R, C]."""
        parts = table.shares * np.exp(at[..., None, 1 : 1 + len(KINDS)])
        device = parts.sum(axis=-1)
        is_piped = (table.trait("pp") > 0).astype(float)
        floors = np.stack([np.ones_like(device), table.trait("tp"), is_piped], axis=-1)
        host = table.shares[..., HOST] * self.floor * np.exp((floors * at[..., None, OF_FLOOR:]).sum(axis=-1))
        longer = np.maximum(device, host)
        powers = (device / longer) ** SHARPNESS, (host / longer) ** SHARPNESS
        total = longer * (powers[0] + powers[1]) ** (1 / SHARPNESS)
        of_device = (powers[0] / (powers[0] + powers[1]))[..., None]
        nodes = table.trait(NODES)
        slopes = np.concatenate(
            [np.ones_like(of_device), of_device * parts / device[..., None], nodes[..., None], (1 - of_device) * floors],
            axis=-1,
        )  # fmt: skip
        return at[..., :1] + np.log(total) + at[..., OF_FLOOR - 1, None] * nodes, slopes

    def alike(self, first: RunTable, second: RunTable) -> Floats:
        """[..., R, S] covariances of what goes with the layouts of two tables."""
        apart = (first.traits[..., :, None, :] - second.traits[..., None, :, :]) / self.reach
        return np.asarray(self.layout**2 * np.exp(-0.5 * (apart**2).sum(axis=-1)))

    def start(self, table: RunTable) -> Floats:
        """Coordinates [..., C] to begin at: as predicted, but the floor where it would explain the middle run by itself."""
        found = np.zeros((*table.missed.shape[:-1], len(COORDINATES)))
        if self.floor:
            host = np.log(table.shares[..., HOST] * self.floor)
            found[..., OF_FLOOR] = np.median(table.missed - host, axis=-1)
        return found

    def fit(self, table: RunTable) -> Fitted:
        """What the runs of a table say, if this is the explanation."""
        at, alike = self.start(table), self.alike(table, table)
        weights = np.ones_like(table.missed)
        variances = np.broadcast_to(self.spreads**2, at.shape).copy()
        for last in (*[False] * ROUNDS, True):
            expected, slopes = self.expected(at, table)
            noise = self.scatter**2 / weights
            moved = slopes * variances[..., None, :]
            covariance = moved @ slopes.swapaxes(-1, -2) + alike + noise[..., None] * np.eye(noise.shape[-1])
            open_ = table.missed - expected + (slopes @ at[..., None])[..., 0]
            pulls = np.asarray(np.linalg.solve(covariance, open_[..., None])[..., 0], np.float64)
            errors = noise * pulls
            if last:
                break
            wanted = (moved.swapaxes(-1, -2) @ pulls[..., None])[..., 0]
            at = at + np.clip(wanted - at, -MOST_MOVE, MOST_MOVE)
            weights = (self.freedom + 1) / (self.freedom + (errors / self.scatter) ** 2)
            variances[..., 0] = (self.spreads[0] ** 2 * LEVEL_FREEDOM + at[..., 0] ** 2) / (LEVEL_FREEDOM + 1)
        of_errors = student(errors / self.scatter, self.freedom) - math.log(self.scatter)
        of_rest = 0.5 * ((open_ - errors) * pulls).sum(axis=-1)
        volume = np.linalg.slogdet(covariance)[1] - np.log(noise).sum(axis=-1)
        of_level = self._of_level(at[..., 0], variances[..., 0])
        evidence = of_errors.sum(axis=-1) - of_rest - 0.5 * volume + of_level
        wide = np.asarray((open_ * pulls).sum(axis=-1))
        return Fitted(self, table, at, variances, slopes, covariance, pulls, weights, evidence, wide)

    def _of_level(self, level: Floats, variance: Floats) -> Floats:
        """What Student's distribution of the level adds to the evidence of a normal one of this variance."""
        normal = -0.5 * (level**2 / variance + np.log(2 * math.pi * variance))
        return np.asarray(
            student(level / self.spreads[0], LEVEL_FREEDOM) - math.log(self.spreads[0]) - normal
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """A reading with what runs say.

    Attributes:
        at: [..., C], the most probable coordinates. variances: [..., C], of a normal prior that is as steep there.
        slopes, covariance, pulls: of the runs there, [..., R, C], [..., R, R] and [..., R].
        weights: [..., R], Student's: above 1 where a run is as expected, near 0 where it is an outlier.
        evidence: [...], the logarithm of how likely these runs were.
        wide: [...], squares of how far they are off in standard deviations, summed: R where all is as expected.
    """

    reading: Reading
    table: RunTable
    at: Floats
    variances: Floats
    slopes: Floats
    covariance: Floats
    pulls: Floats
    weights: Floats
    evidence: Floats
    wide: Floats

    def predict(self, others: RunTable) -> tuple[Floats, Floats]:
        """Of other plans: logarithms [..., R] of their steps over the prediction, and variances, without scatter."""
        expected, slopes = self.reading.expected(self.at, others)
        alike = self.reading.alike(others, self.table)
        moved = slopes * self.variances[..., None, :]
        both = moved @ self.slopes.swapaxes(-1, -2) + alike
        known = (both * np.linalg.solve(self.covariance, both.swapaxes(-1, -2)).swapaxes(-1, -2)).sum(axis=-1)
        variances = (moved * slopes).sum(axis=-1) + self.reading.layout**2 - known
        return expected + (alike @ self.pulls[..., None])[..., 0], np.maximum(variances, 0.0)

    def coordinates(self) -> Floats:
        """Covariances [..., C, C] of the coordinates."""
        moved = (self.slopes * self.variances[..., None, :]).swapaxes(-1, -2)
        known = moved @ np.linalg.solve(self.covariance, moved.swapaxes(-1, -2))
        return np.asarray(np.eye(len(COORDINATES)) * self.variances[..., None] - known)


def student(errors: Floats, freedom: float) -> Floats:
    """Logarithms of Student's density at these."""
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return np.asarray(norm - (freedom + 1) / 2 * np.log1p(errors**2 / freedom))
