"""The order of layouts of one job, which is what a planner is for: regret of the first choice, and rank correlation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from meshwright.evidence.tables.score import JOB_COLUMNS, Scored
from meshwright.evidence.tables.table import TrainingRow

LEAST_LAYOUTS = 10  # of a job, measured and predicted, so that there is an order to speak of
Rank = Callable[
    [Scored], tuple[float, ...]
]  # layouts by it, least first, are in the order that somebody advises


@dataclass(frozen=True)
class JobOrder:
    """One job, and what an order of its layouts is worth.

    Attributes:
        job: in words. num_layouts: measured ones.
        regret: the measured step of the first choice over that of the best layout, less one.
        correlation: of ranks (Spearman), between the order and the measured steps.
    """

    job: str
    num_layouts: int
    regret: float
    correlation: float


class Order(NamedTuple):
    """Who advises so: the rank of layouts, and of a first choice where that is another one."""

    rank: Rank
    first: Rank | None = None


def _fastest(scored: Scored) -> tuple[float, ...]:
    return (scored[1].predicted_s or float("inf"),)


def _fastest_that_fits(scored: Scored) -> tuple[float, ...]:
    """As `plan` proposes where nobody accepts a risk: what may not fit stands behind all others."""
    chance = scored[1].fit_chance
    return float(chance is not None and chance < 1.0), *_fastest(scored)


def _most_data_parallel(scored: Scored) -> tuple[float, ...]:
    row = scored[0]
    return -_data_parallel(row), -row.count("micro_batch_seqs")


def _as_the_book_says(scored: Scored) -> tuple[float, ...]:
    row = scored[0]
    away = abs(np.log2(row.count("tp", 1) / max(1, row.count("gpus_per_node"))))
    return float(away), row.count("pp", 1), -row.count("micro_batch_seqs")


# By name. The book: The Ultra-Scale Playbook (huggingface.co/spaces/nanotron/ultrascale-playbook), "Finding the best training
# configuration", step 3: tensor parallelism up to the size of a node, then data parallelism, a pipeline where nothing else is
# left, the largest microbatch.
ORDERS: Mapping[str, Order] = {
    "meshwright": Order(_fastest, _fastest_that_fits),
    "most data parallel": Order(_most_data_parallel),
    "the book's advice": Order(_as_the_book_says),
}


def orders(scored: Iterable[Scored], order: Order) -> list[JobOrder]:
    """What an order is worth in every job of LEAST_LAYOUTS layouts or more.

    Of layouts that an order holds equal, the first choice is the one in the middle: nobody advised which.
    """
    jobs: dict[tuple[str, ...], list[Scored]] = {}
    for pair in scored:
        row = pair[0]
        jobs.setdefault((row.source, *(row.text(column) for column in JOB_COLUMNS)), []).append(pair)
    return [_order(members, order) for members in jobs.values() if len(members) >= LEAST_LAYOUTS]


def _order(members: Sequence[Scored], order: Order) -> JobOrder:
    measured = [row.measured_s for row, _ in members]
    ranks = [order.rank(pair) for pair in members]
    choices = [(order.first or order.rank)(pair) for pair in members]
    places = {each: place for place, each in enumerate(sorted(set(ranks)))}
    first = sorted(second for second, each in zip(measured, choices, strict=True) if each == min(choices))
    correlation = spearmanr([places[each] for each in ranks], measured).statistic
    row = members[0][0]
    job = f"{row.text('model')}, {row.text('gpus')} x {row.text('gpu')}, {row.source}"
    regret = first[len(first) // 2] / min(measured) - 1.0
    return JobOrder(job, len(members), regret, float(correlation) if np.isfinite(correlation) else 0.0)


def _data_parallel(row: TrainingRow) -> float:
    """Devices that no other axis divides."""
    others = max(1, row.count("tp", 1)) * max(1, row.count("pp", 1)) * max(1, row.count("cp", 1))
    return row.count("gpus") / others
