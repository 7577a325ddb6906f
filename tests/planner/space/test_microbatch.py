"""Sizes of a microbatch: every divisor is tried, and what is left out for memory fits in no way at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.space.axis import AXES
from meshwright.planner.space.degrees import Degrees, divisors
from meshwright.planner.space.microbatch import MicrobatchSizes
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MODEL = ModelSpec.decoder(
    6, 1024, 8, intermediate_size=4096, vocabulary_size=32000, max_sequence_length=16384
)


def with_memory(cluster: ClusterSpec, num_bytes: float) -> ClusterSpec:
    return replace(
        cluster, devices=tuple(replace(each, memory_bytes=int(num_bytes)) for each in cluster.devices)
    )


def roomy(name: str) -> ClusterSpec:
    """With so much memory that nothing is left out."""
    return with_memory(Cluster(name), 1e18)


@given(batch=st.integers(1, 400), dp=st.integers(1, 12))
@settings(deadline=None)
def test_every_divisor_of_a_pipelines_batch_is_tried(batch: int, dp: int) -> None:
    sizes = MicrobatchSizes(MODEL, roomy("8xH100"), Workload(batch * dp, 128), None, MIXED)
    few, large = sizes.on(Degrees(1, 1, 1, 0, 1, dp, 0, 0, 0, 1))
    assert few == [size for size in range(1, batch + 1) if batch % size == 0] == divisors(batch) and not large


@pytest.mark.parametrize("batch", [7, 15, 24, 56, 90])
def test_the_space_has_them_all(batch: int) -> None:
    found = space_of(MODEL, roomy("8xH100"), Workload(batch, 512), fix=MIXED)
    for dp in np.unique(found.dp).tolist():
        assert np.unique(found.microbatch_size[found.dp == dp]).tolist() == divisors(batch // dp)


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "sequence", "gigabytes"),
    [(MODEL, "8xH100", 24, 4096, 4), (load_model("gpt2"), "4xH100", 60, 1024, 3), (MODEL, "2x3xH100", 45, 8192, 6)],
)  # fmt: skip
def test_what_is_left_out_for_memory_fits_in_no_way(
    model: ModelSpec, cluster: str, batch: int, sequence: int, gigabytes: float
) -> None:
    work, small = Workload(batch, sequence), with_memory(Cluster(cluster), gigabytes * 1e9)
    whole = space_of(model, roomy(cluster), work, fix=MIXED)
    few = space_of(model, small, work, fix=MIXED)
    assert len(few) + few.num_beyond_memory == len(whole) and few.num_beyond_memory > 0
    kept = {row_of(few, number) for number in range(len(few))}
    missing = [number for number in range(len(whole)) if row_of(whole, number) not in kept]
    assert len(missing) == few.num_beyond_memory
    needed = closed_form(whole, tables_of(whole, is_priced=False)).needed_bytes[missing]
    assert needed.min() > small.memory_bytes
    for number in np.array(missing)[np.argsort(needed)[:20]].tolist():
        plan = whole.plan(number)
        devices = estimate_memory(plan, small, registered()[plan.schedule]).devices
        assert max(each.allocated_bytes for each in devices) > small.memory_bytes


def row_of(space: Space, number: int) -> tuple[int, ...]:
    return tuple(int(getattr(space, name)[number]) for name in AXES)


def test_where_nothing_fits_the_smallest_is_kept() -> None:
    found = space_of(MODEL, with_memory(Cluster("8xH100"), 1e3), Workload(24, 4096), fix=MIXED)
    assert set(found.microbatch_size) == {1} and found.num_beyond_memory > 0


def test_degrees_that_are_no_powers_of_two_and_uneven_layers_are_in_the_space() -> None:
    found = space_of(MODEL, Cluster("2x6xH100"), Workload(36, 4096), fix=MIXED)
    assert {3, 6, 12} <= set(found.dp) and {3, 6} <= set(found.pp)
    model = MODEL.changed(num_layers=7)
    uneven = space_of(model, Cluster("1x6xH100"), Workload(36, 4096), fix={**MIXED, "pp": 3})
    assert {(2, 3, 2)} <= {uneven.layers_per_stage(number) for number in range(len(uneven))}
    three = MODEL.changed(
        num_heads=6, num_kv_heads=3, head_dim=128, intermediate_size=4098, vocabulary_size=32001
    )
    assert set(space_of(three, Cluster("1x6xH100"), Workload(36, 4096), fix=MIXED).tp) == {1, 3}


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "sequence", "number"),
    [("gpt2", "8xH100", 512, 1024, 4116), ("llama-3.2-1b", "8xH100", 24, 2048, 49577)],
)
def test_number_of_candidates(model: str, cluster: str, batch: int, sequence: int, number: int) -> None:
    """Counted once, so that nobody loses a part of the space without a word."""
    found = space_of(load_model(model), Cluster(cluster), Workload(batch, sequence), fix=MIXED)
    assert len(found) + found.num_beyond_memory == number
