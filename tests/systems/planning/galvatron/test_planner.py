"""Galvatron's search on a user's model: against all choices, within memory, and what no plan can say told with its gain."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.prediction.memory_limit import checked_memory
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload
from meshwright.systems.planning.galvatron.planner import (
    NUM_LEVELS,
    PricedCorner,
    UserJob,
    corners,
    ends_bytes,
    layerwise_plans,
    planned,
    step_s,
)
from meshwright.systems.planning.galvatron.strategy_price import switch_s

FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
LLAMA, JOB = load_model("llama-3.2-1b"), Workload(16, 4096)
SMALL = ModelSpec.decoder(
    num_layers=3, hidden_size=2048, num_heads=16, intermediate_size=8192, vocabulary_size=8192, max_sequence_length=4096
)  # fmt: skip


def of_memory(cluster: str, gigabytes: float) -> ClusterSpec:
    made = Cluster(cluster)
    devices = tuple(replace(each, memory_bytes=int(gigabytes * 1e9)) for each in made.devices)
    return replace(made, devices=devices)


@pytest.mark.parametrize("room_gb", [3.0, 4.0, 6.0, 20.0])
def test_the_programme_finds_what_trying_all_strategies_of_all_layers_finds(room_gb: float) -> None:
    cluster = Cluster("4xH100")
    every = corners(UserJob(SMALL, cluster, JOB, FORMATS))
    corner = next(each for each in every if each.num_stages == 1 and each.num_microbatches == 4)
    corner = PricedCorner(4, corner.priced[:6])
    found = min((each.step_s for each in layerwise_plans(cluster, corner, room_gb * 1e9)), default=None)
    assert found == by_trying_all(corner, cluster, room_gb * 1e9)


def by_trying_all(corner: PricedCorner, cluster: ClusterSpec, room_bytes: float) -> float | None:
    """Of all strategies of three layers and of the ends the fastest by layers and switches that fits; its step."""
    priced, unit = corner.priced, room_bytes / NUM_LEVELS
    best: list[float] = []
    for ends in (each for each in priced if not each.strategy.is_recomputed):
        left = NUM_LEVELS - int(np.ceil(ends_bytes(ends, priced)[0] / unit))
        fitting = [
            chosen
            for chosen in itertools.product(priced, repeat=3)
            if sum(int(np.ceil(each.layers_bytes[0, n] / unit)) for n, each in enumerate(chosen)) <= left
        ]
        seconds = [
            sum(each.layers_s[n] for n, each in enumerate(chosen))
            + sum(switch_s(one, other, cluster) for one, other in itertools.pairwise(chosen))
            for chosen in fitting
        ]
        if fitting:
            best.append(step_s(fitting[int(np.argmin(seconds))], ends, corner.num_microbatches))
    return pytest.approx(min(best)) if best else None


def test_plans_fit_and_recompute_only_as_many_blocks_as_they_must() -> None:
    roomy, tight = of_memory("4xH100", 80), of_memory("4xH100", 13)
    first = planned(LLAMA, roomy, JOB, FORMATS)[0]
    assert first.recompute == "none"
    found = planned(LLAMA, tight, JOB, FORMATS)
    assert all(checked_memory(plan, tight, tight.memory_bytes)[1] is None for plan in found)
    partly = [plan for plan in found if plan.recompute_blocks]
    assert partly and all(0 < sum(plan.recompute_blocks) < 16 for plan in partly)


def test_what_no_plan_can_say_is_told_with_what_it_would_gain() -> None:
    (plain,) = planned(LLAMA, Cluster("4xH100"), JOB, FORMATS).notes
    assert "would gain nothing" in plain
    (note,) = planned(LLAMA, of_memory("4xH100", 10), JOB, FORMATS).notes
    assert "less, which no plan can say: " in note and "ends " in note


def test_less_memory_is_what_the_planner_plans_for() -> None:
    job = {"global_batch": 16, "seq": 4096, "planner": "galvatron"}
    found = mw.plan("llama-3.2-1b", "4xH100", **job, max_memory_bytes=int(10e9))
    assert found.num_too_large == 0 and all(each.peak_bytes < 10e9 for each in found)
    assert any("galvatron scores its best plan" in line for line in found.assumptions)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(PlanError, match="6 devices with planner galvatron; allowed: a power of two"):
        planned(LLAMA, Cluster("6xH100"), JOB, FORMATS)
    with pytest.raises(PlanError, match="tp is decided here"):
        planned(LLAMA, Cluster("4xH100"), JOB, {"tp": 2})
    with pytest.raises(OutOfMemoryError, match="nearest misses"):
        planned(LLAMA, of_memory("4xH100", 3), JOB, FORMATS)
