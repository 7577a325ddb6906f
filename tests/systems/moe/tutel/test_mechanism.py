"""Tutel's r, d and a: what is tried, and what the dictionary finds with few trials."""

from __future__ import annotations

import pytest

from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.plan.workload import Workload
from meshwright.systems.moe.tutel import card
from meshwright.systems.moe.tutel.mechanism import (
    BestByCapacity,
    Choice,
    planned,
    repeats_tokens,
    shared_degrees,
)

CLUSTER = Cluster("2x8xA100-80")


def test_degrees_divide_what_experts_leave() -> None:
    assert shared_degrees(4, 1) == (0, 1, 2, 4) and shared_degrees(8, 64) == (0, 1)
    with pytest.raises(PlanError, match="1 or more"):
        shared_degrees(4, 0)


def test_tokens_are_repeated_where_they_are_fewer_than_parameters() -> None:
    assert repeats_tokens(100, 2, 201) and not repeats_tokens(100, 3, 400)


def test_a_key_is_searched_once() -> None:
    seconds = {Choice(shared, parts, name): abs(shared - 2) + parts + len(name)
               for shared in (0, 1, 2, 4) for parts in (1, 2, 4, 8) for name in ("linear", "two_level")}  # fmt: skip
    known = BestByCapacity((0, 1, 2, 4), lambda _, choice: seconds[choice])
    assert known.best(1) == known.best(127) == Choice(2, 1, "linear")
    once = known.num_trials
    assert known.best(128) == Choice(2, 1, "linear") and known.num_trials == 2 * once
    with pytest.raises(PlanError, match="capacity of 0"):
        known.best(0)


def test_drawn_layers_are_found_within_the_bound() -> None:
    assert card.share_within_bound(2048, 2) == card.found_over_best(2048, 2) == 1.0


def test_every_r_is_a_plan_of_the_users_model() -> None:
    found = planned(load_model("mixtral-8x7b"), CLUSTER, Workload(64, 4096), {"dtype": "bfloat16"})
    shared = {0 if each.ep == 1 else each.expert_tp for each in found}
    assert shared == {0, 1, 2} and {each.token_parts for each in found} == {1, 2, 4}
    assert {each.sharding for each in found if each.ep == 1} == {"zero3"}
    (dense,) = planned(load_model("llama-3.2-1b"), CLUSTER, Workload(64, 2048), {"dtype": "bfloat16"})
    assert dense.ep == 1
    with pytest.raises(PlanError, match="etp"):
        planned(load_model("mixtral-8x7b"), CLUSTER, Workload(64, 4096), {"etp": 1})
