"""Fits what engines add to kernels on tables of measured serving, and shows every table by constants of the others.

    python -m benchmarks.fit.fit_serving_tables [FOLDER] [--parts FILE] [--docs docs]

Seconds of a row are a sum over kinds of kernels (`serving_parts`), each with a factor, and so much a step, a layer, and a
layer whose results are summed between devices. The last two may be below zero: tables of kernels time each call with its
launch, which a captured graph does not repeat.
`--parts` keeps the sums, which take some CPU minutes. Shown are offline throughput and the time per output token: each
table without itself, each campaign (engine, model and chip of a table) without itself, kernels alone, and a roofline of the
data sheets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.chapter.term import rewrite
from numpy.typing import NDArray
from scipy.optimize import least_squares

from .serving_parts import PARTS, ROOFLINE, features
from .serving_rows import THROUGHPUT, TPOT, ServedRow, read

Floats = NDArray[np.float64]
TABLES = Path(__file__).resolve().parents[3] / "shared/data/calibration/serving"
PAGE = "accuracy-serving.md"
BOUNDS = {THROUGHPUT: 0.10, TPOT: 0.08}
KERNELS = [number for number in range(len(PARTS)) if number != ROOFLINE]
# How far constants may be expected from where they begin: factors from 1 by so much in logarithms, a step's host from 0.3 ms,
# and launches from what the tables have, by a few launches of a layer.
FACTOR_SPREAD, HOST_S, HOST_SPREAD_S, LAUNCH_SPREAD_S = 0.1, 0.3e-3, 1e-3, 30e-6
PRIOR_ERROR = 0.03  # of a mean row: what the spreads are weighed against
HALF_SCALE = 0.1  # log error from which the robust loss grows linearly
LEAST_SHARE = 0.05  # of what was measured: no prediction is below


@dataclass(frozen=True)
class AddedConstants:
    """Factors of kinds of kernels (of `PARTS`, without the roofline), and seconds of a step, a layer, and a layer that sums
    between devices."""

    factors: tuple[float, ...]
    step_s: float
    layer_s: float
    exchange_s: float

    def seconds(self, sums: Floats) -> Floats:
        """Of rows [rows, parts, steps, layers, exchanging layers]."""
        weights = np.zeros(sums.shape[1])
        weights[KERNELS] = self.factors
        weights[len(PARTS) :] = self.step_s, self.layer_s, self.exchange_s
        return np.asarray(sums @ weights)

    def words(self) -> str:
        """One line."""
        factors = ", ".join(f"{PARTS[i]} x {f:.2f}" for i, f in zip(KERNELS, self.factors, strict=True))
        return (
            f"{factors}; {1e3 * self.step_s:.2f} ms a step, {1e6 * self.layer_s:.0f} us a layer, "
            f"{1e6 * self.exchange_s:.0f} us more where it exchanges"
        )


def fitted(sums: Floats, measured_s: Floats, groups: Sequence[str]) -> AddedConstants:
    """The constants that miss rows least, each group weighing alike."""
    counts = np.array([groups.count(each) for each in groups])
    weights = np.sqrt(len(groups) / len(set(groups)) / counts)
    held = np.sqrt(len(groups)) * PRIOR_ERROR
    start = np.array([0.0] * len(KERNELS) + [HOST_S, 0.0, 0.0])
    spreads = np.array([FACTOR_SPREAD] * len(KERNELS) + [HOST_SPREAD_S, LAUNCH_SPREAD_S, LAUNCH_SPREAD_S])

    def of(numbers: Floats) -> AddedConstants:
        *factors, step_s, layer_s, exchange_s = (start + spreads * numbers).tolist()
        return AddedConstants(tuple(np.exp(factors).tolist()), step_s, layer_s, exchange_s)

    def missed(numbers: Floats) -> Floats:
        found = np.maximum(of(numbers).seconds(sums), LEAST_SHARE * measured_s)
        off = np.log(found / measured_s) / HALF_SCALE
        robust = np.sign(off) * HALF_SCALE * np.sqrt(2.0 * (np.sqrt(1.0 + off**2) - 1.0))
        return np.concatenate([weights * robust, held * numbers])

    low = np.full(len(start), -15.0)
    low[len(KERNELS)] = -HOST_S / HOST_SPREAD_S  # a step's host takes no less than nothing
    return of(least_squares(missed, np.zeros(len(start)), bounds=(low, np.full(len(start), 15.0))).x)


def without_own(sums: Floats, measured_s: Floats, left_out: Sequence[str], groups: Sequence[str]) -> Floats:
    """Every row by constants of the rows that are not left out with it."""
    found = np.zeros(len(measured_s))
    for name in sorted(set(left_out)):
        own = np.array([each == name for each in left_out])
        others = [group for group, is_own in zip(groups, own, strict=True) if not is_own]
        found[own] = fitted(sums[~own], measured_s[~own], others).seconds(sums[own])
    return found


def errors(rows: Sequence[ServedRow], measured_s: Floats, found_s: Floats) -> Floats:
    """Of what is asked: of a throughput, or of a time."""
    is_time = np.array([row.kind == TPOT for row in rows])
    return np.abs(np.where(is_time, found_s / measured_s, measured_s / found_s) - 1.0)


def report(rows: Sequence[ServedRow], sums: Floats) -> Iterator[str]:
    """A table: kinds and sources down, ways to predict across, median errors in it; bounds and whether they hold below."""
    measured_s = np.array([row.measured_s for row in rows])
    sources, campaigns = [row.source for row in rows], [row.campaign for row in rows]
    ways: Mapping[str, Floats] = {
        "table left out": without_own(sums, measured_s, sources, campaigns),
        "campaign left out": without_own(sums, measured_s, campaigns, campaigns),
        "kernels alone": sums[:, KERNELS].sum(axis=1),
        "roofline": sums[:, ROOFLINE],
    }
    off = {name: errors(rows, measured_s, found) for name, found in ways.items()}
    yield f"| figure | table | rows | {' | '.join(ways)} |"
    yield f"|---|---|--:|{'--:|' * len(ways)}"
    for kind in BOUNDS:
        names = sorted({row.source for row in rows if row.kind == kind})
        for name in ("all", *names) if len(names) > 1 else names:
            own = np.array([row.kind == kind and name in ("all", row.source) for row in rows])
            cells = (f"{np.median(each[own]):.1%}" for each in off.values())
            yield f"| {kind} | {name} | {own.sum()} | {' | '.join(cells)} |"
        if len(names) > 1:
            tables = [np.array([row.kind == kind and row.source == name for row in rows]) for name in names]
            cells = (f"{np.mean([np.median(each[own]) for own in tables]):.1%}" for each in off.values())
            yield f"| {kind} | mean of the tables | | {' | '.join(cells)} |"
    yield ""
    for kind, bound in BOUNDS.items():
        own = np.array([row.kind == kind for row in rows])
        for name in list(ways)[:2]:
            value = float(np.median(off[name][own]))
            yield f"- {kind}, {name}: {value:.1%}, asked {bound:.0%}: {'holds' if value <= bound else 'MISSED'}"
    yield ""
    yield f"Constants of all rows: {fitted(sums, measured_s, campaigns).words()}."


def with_exchanges(rows: Sequence[ServedRow], sums: Floats) -> Floats:
    """One column more: layers whose results are summed."""
    shared = np.array([row.tp > 1 for row in rows])
    return np.column_stack([sums, sums[:, -1] * shared])


def sums_of(rows: Sequence[ServedRow], kept: Path | None) -> Floats:
    """Of every row; from a file where it has them."""
    if kept is not None and kept.is_file():
        known = np.load(kept)
        place = {name: number for number, name in enumerate(known["row_ids"].tolist())}
        return np.asarray(known["sums"][[place[row.row_id] for row in rows]])
    found = features(rows)
    if kept is not None:
        np.savez(kept, row_ids=np.array([row.row_id for row in rows]), sums=found)
    return found


def left_out_lines(reasons: Mapping[str, int]) -> Iterator[str]:
    """Reasons, each with its rows."""
    for reason, number in sorted(reasons.items()):
        yield f"- {reason}: {number} rows"


def main() -> int:
    """Print, or write the page; 0, also where there is no table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=TABLES)
    parser.add_argument("--parts", type=Path)
    parser.add_argument("--docs", type=Path)
    asked = parser.parse_args()
    paths = sorted(asked.folder.glob("*.csv"))
    if not paths:
        print(f"absent: tables of measured serving in {asked.folder}", file=sys.stderr)
        return 0
    rows, reasons = read(paths)
    blocks = {
        "errors": "\n".join(report(rows, with_exchanges(rows, sums_of(rows, asked.parts)))),
        "left out": "\n".join(left_out_lines(reasons)),
    }
    if asked.docs:
        rewrite(asked.docs / PAGE, blocks)
    else:
        print("\n\n".join(blocks.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
