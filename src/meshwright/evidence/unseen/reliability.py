"""Do chances that a run fits come true: of measured peaks, the share at or below the capacity that has a given chance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.evidence.tables.score import Scored, mean

LEVELS = tuple(tenth / 10 for tenth in range(1, 10))
TOLERANCE = 1e-12  # of a chance that is its level


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram, every source weighing alike.

    Attributes:
        levels: predicted chances. observed: share of measured peaks that are no more than the capacity which the estimate
            of their run gives that chance; tensors alone, as some sources count them, are no such peak.
        num_rows, num_sources: with such a peak.
        fit_chance: mean chance that runs with any measured peak fit on the devices on which they ran, as they did.
        bound_above: median share by which the bound of their peaks is above what is expected.
    """

    levels: tuple[float, ...]
    observed: tuple[float, ...]
    num_rows: int
    num_sources: int
    fit_chance: float | None
    bound_above: float | None

    @property
    def error(self) -> float | None:
        """Mean distance of the shares from their chances."""
        return mean(abs(share - level) for share, level in zip(self.observed, self.levels, strict=True))


def reliability(scored: Sequence[Scored]) -> Reliability:
    """Of rows whose measured peak and its chance are known."""
    by_source: dict[str, list[float]] = {}
    for row, one in scored:
        if one.peak_chance is not None:
            by_source.setdefault(row.source, []).append(one.peak_chance)
    shares = [
        [float(np.mean(np.array(chances) <= level + TOLERANCE)) for level in LEVELS]
        for chances in by_source.values()
    ]
    observed = tuple(float(share) for share in np.mean(shares, axis=0)) if shares else ()
    measured = [one for row, one in scored if row.peak_bytes]
    above = [
        one.upper_peak_bytes / one.predicted_peak_bytes - 1.0
        for one in measured
        if one.upper_peak_bytes and one.predicted_peak_bytes
    ]
    return Reliability(
        LEVELS if shares else (),
        observed,
        num_rows=sum(map(len, by_source.values())),
        num_sources=len(by_source),
        fit_chance=mean(one.fit_chance for one in measured),
        bound_above=statistics.median(above) if above else None,
    )
