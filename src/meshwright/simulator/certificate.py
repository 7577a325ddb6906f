"""The certificate: no device and no link was over-subscribed, so times without contention are the times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.simulator.pricing import Prices

TOLERANCE = 1e-9  # shares are quotients of measured numbers; a sum of 1 + 1e-9 is 1


def is_uncontended(
    program: Program, prices: Prices, start: NDArray[np.float64], end: NDArray[np.float64]
) -> bool:
    """Was every resource within its capacity all the time? ``start``, ``end``: ``[iterations, rows]``.

    First by streams alone (what never can run together cannot contend), then by sweeping over the intervals.
    """
    return all(
        _static_peak(program, share, where) <= 1 + TOLERANCE
        or _swept_peak(share, where, start, end) <= 1 + TOLERANCE
        for share, where in resources(program, prices)
    )


def resources(program: Program, prices: Prices) -> list[tuple[NDArray[np.float64], Any]]:
    """Every family of resources: the share of each row, and the resource's number within the family (one a row)."""
    of_row = prices.cost_of_row
    compute = np.array([cost.compute_share for cost in prices.costs])[of_row]
    memory = np.array([cost.memory_share for cost in prices.costs])[of_row]
    families: list[tuple[NDArray[np.float64], Any]] = [
        (compute, program.list_of_row),
        (memory, program.list_of_row),
    ]
    names = sorted({name for demand in prices.demands for name, _ in demand})
    senders = program.kinds != 2  # a message occupies its links once: with the row that sends it
    for name in names:
        share = np.array([dict(demand).get(name, 0.0) for demand in prices.demands])[of_row]
        families.append((np.where(senders, share, 0.0), np.zeros(program.num_rows, dtype=np.int32)))
    return families


def _static_peak(program: Program, share: NDArray[np.float64], where: Any) -> float:
    """Largest sum over a resource of the largest share on each stream: an upper bound."""
    num_streams = len(program.tables.streams)
    largest = np.zeros(program.num_lists * num_streams)
    np.maximum.at(largest, program.list_of_row * num_streams + program.columns.stream, share)
    by_list = largest.reshape(program.num_lists, num_streams).sum(axis=1)
    same = where is program.list_of_row
    return float(by_list.max(initial=0.0) if same else by_list.sum())


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
