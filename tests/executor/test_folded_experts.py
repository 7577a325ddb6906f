"""Experts fold the devices of a stage in a way of their own: whatever the two foldings, training is that of one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from tests.covering import slow_cases
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 2
ATTENTION, EXPERTS = ("tp", "cp", "dp"), ("etp", "ep")


def foldings(product: int) -> Iterator[tuple[int, int, int]]:
    """All that have a product."""
    whole = range(1, product + 1)
    return (each for each in itertools.product(whole, whole, whole) if each[0] * each[1] * each[2] == product)


def folded_layouts(product: int, **more: Any) -> Iterator[dict[str, Any]]:
    """Every (tp, cp, dp) with every (etp, ep, edp)."""
    for attention, experts in itertools.product(foldings(product), foldings(product)):
        yield (
            dict(zip(ATTENTION, attention, strict=True)) | dict(zip(EXPERTS, experts[:2], strict=True)) | more
        )


def planned(model: str = "folded mixtral", clip: float = 0.0, **choices: Any) -> Planned:
    return Planned(model, clip, choices=choices)


QUICK = [
    planned("folded qwen moe", 0.1, dp=4, etp=2, ep=2),
    planned("folded qwen moe", 0.1, tp=4, etp=1, ep=1, sequence_parallel=True),
    planned("folded mixtral", 0.1, tp=2, cp=2, etp=4, ep=1),
    planned("folded deepseek", 0.1, tp=2, dp=2, etp=1, ep=2, sharding="zero3"),
    planned("folded qwen moe", 0.1, cp=4, etp=1, ep=2),
]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_folded_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


FAMILIES = ("folded mixtral", "folded qwen moe", "folded deepseek")


def every_layout() -> list[Planned]:
    """Every (tp, cp, dp) x (etp, ep, edp) of four devices, and of two in two stages, of every family; sequence parallelism,
    sharding and how devices of cp attend take turns."""
    rows = [*folded_layouts(4), *folded_layouts(2, pp=2)]
    found, turns = [], itertools.count()
    for row, family in itertools.product(rows, FAMILIES):
        turn = next(turns)
        copies, divides = row["dp"] * row["cp"], row["tp"] > 1 and turn % 2 == 0
        more: dict[str, Any] = {"sequence_parallel": True} if divides else {}
        if copies > 1 and turn % 5:
            more["sharding"] = ("zero1", "zero2", "zero3", "none")[turn % 4]
        if row["cp"] > 1:
            more["context"] = ("ring", "all_gather", "token_ring", "ulysses")[
                turn % (4 if row["tp"] * row["cp"] <= 4 else 3)
            ]
        found.append(planned(family, 0.1 * (turn % 3 > 0), **row, **more))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(every_layout), ids=str)
def test_every_pair_of_foldings_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
