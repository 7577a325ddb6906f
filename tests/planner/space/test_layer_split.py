"""Uneven stages are offered where devices or the model's ends are uneven, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.planner.space_case import cluster

from meshwright.planner import choices
from meshwright.planner.space.layer_split import balanced, layer_splits, neighbours
from meshwright.schedules import registered
from meshwright.specs import ClusterSpec, ModelSpec, Plan, Workload

MODEL = ModelSpec.decoder(6, 64, 4, max_sequence_length=64)
WORKLOAD = Workload(8, 64)


def slowed(*factors: float) -> ClusterSpec:
    """Processes of which each takes so many times as long."""
    even = cluster(len(factors))
    devices = tuple(
        replace(device, flops_per_s={name: rate / factor for name, rate in device.flops_per_s.items()})
        for device, factor in zip(even.devices, factors, strict=True)
    )
    return replace(even, devices=devices)


def plan(on: ClusterSpec, model: ModelSpec = MODEL, **choice: Any) -> Plan:
    """A pipeline over two devices unless said otherwise."""
    return Plan.of(model, on, WORKLOAD, **{"pp": 2, **choice})


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_even_devices_keep_even_stages(pp: int) -> None:
    even = plan(cluster(4), pp=pp)
    assert layer_splits(even, cluster(4)) == (even.layers_per_stage,)


@pytest.mark.parametrize(
    ("factors", "split"),
    [((1, 2), (4, 2)), ((2, 1), (2, 4)), ((1, 5), (5, 1)), ((1, 1, 2), (2, 3, 1)), ((1, 100), (5, 1))],
)
def test_blocks_follow_the_rates(factors: tuple[float, ...], split: tuple[int, ...]) -> None:
    on = slowed(*factors)
    found = balanced(plan(on, pp=len(factors)), on)
    assert sum(found) == MODEL.num_layers and min(found) >= 1
    worst = max(count * factor for count, factor in zip(found, factors))
    assert worst <= max(count * factor for count, factor in zip(split, factors))


def test_chunks_of_a_device_share_its_rate() -> None:
    on = slowed(1, 2)
    found = balanced(plan(on, num_chunks=2), on)
    assert found == (2, 1, 2, 1)


def test_a_stage_is_as_fast_as_its_slowest_replica() -> None:
    on = slowed(1, 1, 1, 3)  # devices 2 and 3 are the replicas of the second stage
    assert balanced(plan(on, dp=2), on) == (5, 1) or balanced(plan(on, dp=2), on) == (4, 2)
    assert balanced(plan(on, dp=2), on)[0] > 3


def test_a_heavy_head_counts_as_blocks() -> None:
    model = ModelSpec.decoder(6, 64, 4, vocabulary_size=2000, max_sequence_length=64)
    found = layer_splits(plan(cluster(), model), cluster())
    assert found[0] == (3, 3) and (4, 2) in found[1:] or (5, 1) in found[1:]


def test_neighbours_move_one_block_and_empty_no_stage() -> None:
    assert set(neighbours((4, 2))) == {(3, 3), (5, 1)}
    assert neighbours((1, 1)) == ()
    assert all(sum(split) == 6 and min(split) >= 1 for split in neighbours((3, 1, 2)))


def test_the_enumeration_offers_them_and_what_is_fixed_stays() -> None:
    on = slowed(1, 2)
    splits = {p.layers_per_stage for p in choices(MODEL, on, WORKLOAD, registered(), {}) if p.num_stages == 2}
    assert splits == {(3, 3), (4, 2), (5, 1)}
    fixed = {"layers_per_stage": (2, 4), "pp": 2, "schedule": "1f1b"}
    assert {p.layers_per_stage for p in choices(MODEL, on, WORKLOAD, registered(), fixed)} == {(2, 4)}
