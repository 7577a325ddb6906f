"""The certificate: no device and no link was over-subscribed, so times without contention are the times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.wiring import Wiring
from meshwright.simulator.pricing import Prices

TOLERANCE = 1e-9  # shares are quotients of measured numbers; a sum of 1 + 1e-9 is 1


def is_uncontended(
    wiring: Wiring, prices: Prices, start: NDArray[np.float64], end: NDArray[np.float64]
) -> bool:
    """Was every resource within its capacity all the time? ``start``, ``end``: ``[iterations, rows]``.

    First by streams alone (what never can run together cannot contend), then by sweeping over the intervals.
    """
    program = wiring.program
    num_streams = len(program.tables.streams)
    place = prices.cost_of_row * np.int32(num_streams) + program.columns.stream
    used = np.bincount(place, minlength=len(prices.costs) * num_streams).reshape(-1, num_streams) > 0
    return all(
        (not of_link and _static_peak(used, by_class) <= 1 + TOLERANCE)
        or _swept_peak(_rows_share(wiring, prices, by_class, of_link), where, start, end) <= 1 + TOLERANCE
        for by_class, where, of_link in resources(program, prices)
    )


def resources(program: Program, prices: Prices) -> list[tuple[NDArray[np.float64], Any, bool]]:
    """Every family of resources: the share of each class of cost, the resource's number within the family (one a
    row), and whether it is a link, which an exchange occupies once."""
    costs = prices.costs
    families: list[tuple[NDArray[np.float64], Any, bool]] = [
        (np.array([cost.compute_share for cost in costs]), program.list_of_row, False),
        (np.array([cost.memory_share for cost in costs]), program.list_of_row, False),
    ]
    for name in sorted({name for demand in prices.demands for name, _ in demand}):
        share = np.array([dict(demand).get(name, 0.0) for demand in prices.demands])
        families.append((share, np.zeros(program.num_rows, dtype=np.int32), True))
    return families


def _static_peak(used: NDArray[np.bool_], by_class: NDArray[np.float64]) -> float:
    """Sum over the streams of the largest share that any row on a stream of that name has: an upper bound for a device."""
    return float((used * by_class[:, None]).max(axis=0, initial=0.0).sum())


def _rows_share(
    wiring: Wiring, prices: Prices, by_class: NDArray[np.float64], of_link: bool
) -> NDArray[np.float64]:
    """The share of every row."""
    share = by_class[prices.cost_of_row]
    return np.where(occupies_links(wiring), share, 0.0) if of_link else share


def occupies_links(wiring: Wiring) -> NDArray[np.bool_]:
    """Which rows occupy links: of every exchange one end, the sender or the last member; of the rest each."""
    kinds = wiring.program.kinds
    last_member = wiring.next_end <= np.arange(len(kinds))  # the circle of a group runs upward and then back
    return np.asarray((kinds != Kind.RECEIVE) & ((kinds != Kind.COLLECTIVE) | last_member))


def _swept_peak(
    share: NDArray[np.float64], where: Any, start: NDArray[np.float64], end: NDArray[np.float64]
) -> float:
    """Largest sum of shares at any time on any resource of the family, over all iterations."""
    chosen = np.flatnonzero(share > 0)
    lengths = end[:, chosen] - start[:, chosen]
    iteration, place = np.nonzero(lengths > 0)
    rows = chosen[place]
    resource = np.concatenate([where[rows], where[rows]])
    times = np.concatenate([start[iteration, rows], end[iteration, rows]])
    change = np.concatenate([share[rows], -share[rows]])
    order = np.lexsort((change, times, resource))
    total = np.cumsum(change[order])  # every resource's changes sum to zero, so one running sum serves all
    return float(total.max(initial=0.0))
