"""LeastMemory: what gets no row for its memory fits in no way, and everything else stays, in its order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.covering import always

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.space.axis import AXES
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def rows_of(space: Space) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(space, name).tolist() for name in AXES), strict=True))


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "sequence", "gigabytes", "fix"),
    always(
        [
            ("llama-3.2-1b", "8xH100", 24, 4096, 6, MIXED),
            ("gpt2", "2x4xH100", 24, 1024, 1, {"dtype": "bfloat16"}),
            ("mixtral-8x7b", "2x8xH100", 32, 4096, 60, {**MIXED, "recompute_blocks": 0}),
        ],
        {0, 1},
    ),
)
def test_what_has_no_row_fits_in_no_way(
    model: str, cluster: str, batch: int, sequence: int, gigabytes: float, fix: dict[str, Any]
) -> None:
    job, capacity = (load_model(model), Cluster(cluster), Workload(batch, sequence)), int(gigabytes * 1e9)
    whole, few = space_of(*job, fix=fix), space_of(*job, fix=fix, capacity_bytes=capacity)
    assert few.num_candidates == whole.num_candidates and len(few) < len(whole)
    kept, every = set(rows_of(few)), rows_of(whole)
    assert rows_of(few) == [row for row in every if row in kept]
    missing = np.array([number for number, row in enumerate(every) if row not in kept])
    needed = closed_form(whole, tables_of(whole, is_priced=False)).needed_bytes
    assert needed[missing].min() > capacity
    for number in missing[np.argsort(needed[missing])[:20]].tolist():
        plan = whole.plan(number)
        devices = estimate_memory(plan, job[1], registered()[plan.schedule]).devices
        assert max(each.allocated_bytes for each in devices) > capacity


def test_where_nothing_fits_all_have_rows() -> None:
    job = (load_model("gpt2"), Cluster("4xH100"), Workload(8, 1024))
    assert len(space_of(*job, fix=MIXED, capacity_bytes=10**6)) == len(space_of(*job, fix=MIXED))
