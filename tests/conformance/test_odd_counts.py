"""Whatever pass a plan names, on whatever schedule and of however few or odd a number of microbatches: what is accepted
before it starts runs to its end, and gives what one process gives.

A schedule may hand the devices of a stage unlike shares of the microbatches; a pass that takes them for alike breaks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from meshwright import catalog
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.lowering.lower import NAMED
from tests.covering import covering, product, slow_cases
from tests.planned_case import Planned, assert_equal_to_one_process, legal

ITERATIONS = 2
COUNTS = (1, 3, 5)  # microbatches of a replica
DEGREES = ((2, 1), (2, 2), (4, 1))  # pp, dp
# A schedule that leaves stages out trains another model where it does; it has its own test.
SCHEDULES = tuple(
    "skip_pipe(skipped=0)" if name == "skip_pipe" else name for name in catalog.names("schedules")
)
# Every pass that a plan may name, several at once where they go together; and what each is of use beside.
PASSES: dict[str, dict[str, Any]] = {
    "kept apart": {"passes": ("canonical_reduction", "connect_stages")},
    "stepped early": {"passes": ("post_validation", "place_receives"), "clip": 0.1},
    "shared": {"passes": ("offload_optimizer", "unshard"), "sharding": "zero3"},
}


def case_of(row: Mapping[str, Any]) -> Planned:
    """A row of the product as a plan: microbatches of one sample."""
    fields = dict(PASSES[row["pass"]])
    clip, (pp, dp) = fields.pop("clip", 0.0), row["degrees"]
    fields |= {"pp": pp, "dp": dp, "microbatch_size": 1} | {
        name: row[name] for name in ("schedule", "recompute")
    }
    return Planned(row["model"], clip, batch=row["count"] * dp, choices=fields)


def rows() -> list[dict[str, Any]]:
    """The product, less what shards where nobody is to share with."""
    factors = {
        "pass": tuple(PASSES), "schedule": SCHEDULES, "count": COUNTS, "degrees": DEGREES,
        "recompute": ("none", "full"), "model": ("llama", "tied"),
    }  # fmt: skip
    return [row for row in product(factors) if row["degrees"][1] > 1 or "sharding" not in PASSES[row["pass"]]]


ROWS = rows()
QUICK = covering(ROWS)


def check(case: Planned, pool: Pool) -> None:
    """What is not refused is proven, runs, and is right."""
    job, _ = case.job(ITERATIONS)
    verify(job.program)
    assert_equal_to_one_process(case, case.run(pool, ITERATIONS), ITERATIONS)


def test_every_pass_is_tried() -> None:
    """But for what corrects routers, which no model here has: tests/executor/routing/test_router_correction.py; and for what
    is told of experts along cp: tests/executor/training/test_expert_capacity.py."""
    tried = {name for fields in PASSES.values() for name in fields["passes"]} | {"clip_gradients"}
    assert tried | {"correct_routers", "share_choices"} == set(NAMED), "clip_gradients is what `clip` names"


CASES = legal(case_of(ROWS[number]) for number in QUICK)


def test_every_schedule_is_tried_with_every_pass() -> None:
    """What is refused leaves no schedule out."""
    tried = {(case.choices["schedule"], case.choices["passes"]) for case in CASES}
    assert tried == {(name, fields["passes"]) for name in SCHEDULES for fields in PASSES.values()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_accepted_runs(case: Planned, gloo_pool: Pool) -> None:
    check(case, gloo_pool)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    slow_cases(lambda: legal(case_of(row) for number, row in enumerate(ROWS) if number not in QUICK)),
    ids=str,
)
def test_all_that_is_accepted_runs(case: Planned, gloo_pool: Pool) -> None:
    check(case, gloo_pool)
