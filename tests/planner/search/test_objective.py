"""Objective: the order of candidates and of simulated plans, and what an objective needs to know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.planner.advice.running_cost import running_cost, with_rates
from meshwright.planner.search.objective import Objective, check_rates, objective_named, rank, sort_key
from meshwright.planner.search.search import search
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.error import PlanError, UnknownNameError

STEP_S = np.array([2.0, 1.0, 3.0, 1.0 + 1e-13, 2.0])
PEAK_BYTES = np.array([10.0, 50.0, 5.0, 20.0, 10.0])


def test_time_money_and_energy_rank_by_the_step_and_equal_ones_by_their_place() -> None:
    for objective in (Objective.TIME, Objective.COST, Objective.ENERGY):
        assert rank(objective, STEP_S, PEAK_BYTES).tolist() == [1, 3, 0, 4, 2]


def test_memory_ranks_by_the_peak_and_then_by_the_step() -> None:
    assert rank(Objective.MEMORY, STEP_S, PEAK_BYTES).tolist() == [2, 0, 4, 3, 1]
    assert rank(Objective.MEMORY, STEP_S[:0], PEAK_BYTES[:0]).tolist() == []


def test_on_one_cluster_the_cheapest_is_the_fastest() -> None:
    cluster = with_rates(Cluster("8xH100"), price_per_hour_usd=2.0)
    costs = [running_cost(cluster, step, 1e6) for step in (1.0, 2.0, 3.0)]
    dollars = [each.usd_per_billion_tokens for each in costs]
    energy = [each.joules_per_billion_tokens for each in costs]
    assert dollars == sorted(dollars) and energy == sorted(energy)  # type: ignore[type-var]


def test_a_search_for_memory_finds_less_than_one_for_time() -> None:
    model = ModelSpec.decoder(4, 2048, 16, max_sequence_length=2048, vocabulary_size=32000)
    job = model, Cluster("4xH100"), Workload(16, 2048)
    options: dict[str, Any] = {"fix": {"dtype": "bfloat16"}, "num_simulated": 8}
    fast = search(*job, **options)
    small = search(*job, **options, objective=Objective.MEMORY)
    assert small[0].peak_bytes < fast[0].peak_bytes and small[0].step.value > fast[0].step.value
    keys = [sort_key(Objective.MEMORY, each) for each in small]
    assert keys == sorted(keys) and [each.peak_bytes for each in small] == sorted(
        each.peak_bytes for each in small
    )


def test_names_are_known() -> None:
    assert objective_named("memory") is Objective.MEMORY
    with pytest.raises(UnknownNameError, match="memory"):
        objective_named("memery")


def test_money_needs_a_price_and_energy_a_power() -> None:
    cpu = Cluster("2xcpu")
    with pytest.raises(PlanError, match="--price"):
        check_rates(Objective.COST, cpu)
    with pytest.raises(PlanError, match="--power"):
        check_rates(Objective.ENERGY, cpu)
    check_rates(Objective.TIME, cpu)
    check_rates(Objective.COST, with_rates(cpu, price_per_hour_usd=0.1))
