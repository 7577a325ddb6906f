"""Tutel's r, d and a: what is tried, and what the dictionary finds with few trials."""

from __future__ import annotations

from math import prod

import pytest

from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
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
    near = {(each.expert_tp, each.ep_near) for each in found}
    assert near == {(1, 1), (2, 1), (2, 4)}, (
        "of 16 devices in two nodes eight have an expert each, or four pairs a node"
    )
    (dense,) = planned(load_model("llama-3.2-1b"), CLUSTER, Workload(64, 2048), {"dtype": "bfloat16"})
    assert dense.ep == 1
    with pytest.raises(PlanError, match="etp"):
        planned(load_model("mixtral-8x7b"), CLUSTER, Workload(64, 4096), {"etp": 1})


def test_two_levels_send_fewer_messages_between_nodes() -> None:
    """Four devices with an expert each, two a node: of an all-to-all one message leaves a device's node in place of two, and
    one goes to its neighbour as before. That both train alike, row for row: tests/executor/test_folded_experts.py."""
    model = ModelSpec.decoder(2, 32, 4, max_sequence_length=16).changed(
        architecture="mixtral", num_experts=4, num_experts_per_token=1, expert_intermediate_size=32
    )
    plans = planned(model, Cluster("2x2xcpu"), Workload(8, 16), {"dtype": "float32"})
    found = {each.ep_near: each for each in plans if (each.ep, each.token_parts) == (4, 1)}
    assert messages(found[1]) == {"near": 1, "far": 2}
    assert messages(found[2]) == {"near": 1, "far": 1}


def messages(plan: Plan) -> dict[str, int]:
    """That a device sends to others of its node, and of the other, in one all-to-all to experts of the first block."""
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    t, c = program.tables, program.columns
    sizes = {axis.name: axis.size for axis in program.axes}
    names = [t.effects[number].name for number in c.effect.tolist()]
    first = c.stage.tolist()[names.index("ROUTE")]
    levels = dict[tuple[str, ...], int]()
    for row, name in enumerate(names[: names.index("B")]):
        axes = t.exchanges[c.exchange[row]].axes
        if name == "ROUTE" and c.stage[row] <= first + 2 and axes not in levels:
            levels[axes] = prod(sizes[axis] for axis in axes)
    if len(levels) == 1:  # all at once: of three others one is in the own node
        (members,) = levels.values()
        return {"near": plan.ep // 2 - 1, "far": members - plan.ep // 2}
    near, far = levels.values()
    return {"near": near - 1, "far": far - 1}
