"""The mesh: where groups cut the data-parallel axis, which groups do not nest, and where mesh orders put devices."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lowering.plans import EXPERTS, lowered, plan

from meshwright.ir.table import Exchange, Kind
from meshwright.lowering.place import place
from meshwright.specs import Cluster, PlanError
from meshwright.stage.mesh import (
    collapsed_axes,
    context_axes,
    data_axes,
    device_order,
    expert_axes,
    expert_data_axes,
    expert_tensor_axes,
    folded,
    num_members,
    shard_axes,
)


def sizes(chosen):
    return {axis.name: axis.size for axis in collapsed_axes(chosen)}


def test_one_axis_without_groups():
    chosen = plan(dp=4)
    assert sizes(chosen) == {"dp": 4} and data_axes(chosen) == ("dp",)
    assert shard_axes(chosen) == expert_axes(chosen) == () and expert_data_axes(chosen) == ("dp",)


def test_state_shared_by_some_cuts_the_axis():
    chosen = plan(dp=8, sharding="zero3", sharding_degree=4)
    assert sizes(chosen) == {"dp": 2, "dp4": 4}
    assert data_axes(chosen) == ("dp", "dp4") and shard_axes(chosen) == ("dp4",)
    assert sizes(plan(dp=8, sharding="zero3")) == {"dp": 8} and shard_axes(plan(dp=8, sharding="zero3")) == (
        "dp",
    )


def test_a_degree_of_one_shares_nothing():
    chosen = plan(dp=4, sharding="zero3", sharding_degree=1)
    assert sizes(chosen) == {"dp": 4} and shard_axes(chosen) == ()


def test_context_pieces_share_state_first():
    chosen = plan(dp=4, cp=2, sharding="zero2", sharding_degree=4)
    assert sizes(chosen) == {"dp": 2, "dp2": 2, "cp": 2}
    assert shard_axes(chosen) == ("dp2", "cp") and num_members(chosen, shard_axes(chosen)) == 4
    assert data_axes(chosen) == ("dp", "dp2", "cp")


def test_experts_and_state_cut_twice():
    chosen = plan(EXPERTS, dp=8, ep=2, sharding="zero1", sharding_degree=4)
    assert sizes(chosen) == {"dp": 2, "dp4": 2, "dp2": 2}
    assert expert_axes(chosen) == ("dp2",) and expert_data_axes(chosen) == ("dp", "dp4")
    assert shard_axes(chosen) == ("dp4", "dp2")


@pytest.mark.parametrize(
    ("degrees", "ep", "axes"),
    [
        ({"dp": 4}, 4, ("dp",)),
        ({"dp": 4}, 2, ("dp2",)),
        ({"dp": 2, "cp": 2}, 2, ("cp",)),
        ({"dp": 2, "cp": 2}, 4, ("dp", "cp")),
        ({"dp": 2, "tp": 2}, 2, ("dp",)),  # every expert divided by tp
        ({"dp": 2, "tp": 2}, 4, ("dp", "tp")),  # whole experts
        ({"dp": 2, "tp": 2, "etp": 1}, 2, ("tp",)),
        ({"dp": 2, "cp": 2, "tp": 2, "etp": 1}, 4, ("cp", "tp")),
        ({"dp": 1, "tp": 4}, 4, ("tp",)),
        ({"dp": 1, "cp": 4, "tp": 2, "etp": 1}, 4, ("cp2", "tp")),  # whole experts on a part of cp
        ({"dp": 1, "cp": 4, "tp": 2, "etp": 1}, 2, ("tp",)),
        ({"dp": 2, "cp": 2, "tp": 2}, 8, ("dp", "cp", "tp")),
        ({"dp": 2, "cp": 4}, 2, ("cp2",)),  # of cp a part
        ({"dp": 1, "tp": 4, "etp": 2}, 2, ("tp",)),  # of tp the outer part, inside which an expert is divided
        ({"dp": 8, "etp": 2}, 2, ("dp4",)),
        ({"dp": 2, "cp": 2, "tp": 2, "etp": 4}, 2, ("dp",)),
    ],
)
def test_experts_are_divided_from_the_inside_out(degrees, ep, axes):
    chosen = plan(EXPERTS, ep=ep, **degrees)
    assert expert_axes(chosen) == axes and num_members(chosen, axes) == ep
    every = set(sizes(chosen))
    assert set(expert_data_axes(chosen)) == every - set(axes) - set(expert_tensor_axes(chosen))
    assert num_members(chosen, expert_tensor_axes(chosen)) == chosen.expert_tp
    assert num_members(chosen, expert_data_axes(chosen)) == chosen.expert_dp


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 5))
def test_both_foldings_number_the_same_devices(degrees):
    tp, cp, dp, etp, ep = degrees
    world = tp * cp * dp
    if etp * ep > world:
        return
    mesh = folded((tp, cp, dp), (etp, ep))
    assert math.prod(axis.size for axis in mesh) == world
    strides = dict(zip((axis.name for axis in mesh), (axis.stride for axis in mesh), strict=True))
    for rank in range(world):
        at = {axis.name: rank // axis.stride % axis.size for axis in mesh}
        assert rank == sum(at[name] * strides[name] for name in at), "row-major, the first outermost"
        for roles, lengths in (
            (("tp", "cp", "dp"), (tp, cp, dp)),
            (("etp", "ep", "edp"), (etp, ep, world // etp // ep)),
        ):
            found, inside = 0, 1
            for role, length in zip(roles, lengths, strict=True):
                own = [axis for axis in mesh if role in (axis.attention, axis.experts)]
                number = 0
                for axis in own:
                    number = number * axis.size + at[axis.name]
                assert math.prod(axis.size for axis in own) == length
                found, inside = found + number * inside, inside * length
            assert found == rank, "Megatron's order: the first of a folding is innermost"


def test_a_sequence_is_shared_along_both_parts_of_an_axis_that_experts_cut():
    chosen = plan(EXPERTS, cp=4, tp=2, dp=2, ep=4, etp=1, sharding="zero1")
    assert sizes(chosen) == {"dp": 2, "cp": 2, "cp2": 2, "tp": 2}
    assert context_axes(chosen) == ("cp", "cp2")
    assert data_axes(chosen) == shard_axes(chosen) == ("dp", "cp", "cp2")
    assert expert_data_axes(chosen) == ("dp", "cp")


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"dp": 6, "ep": 2, "sharding": "zero1", "sharding_degree": 3}, "do not nest"),
        ({"dp": 3, "tp": 2, "ep": 1, "etp": 3}, "groups of 2 and of 3 devices do not nest"),
        (
            {"dp": 4, "cp": 4, "sharding": "zero3", "sharding_degree": 2},
            r"sharding_degree\(2\) does not fill cp\(4\)",
        ),
    ],
)
def test_groups_that_do_not_nest_are_refused(choices, said):
    with pytest.raises(PlanError, match=said) as caught:
        lowered(plan(EXPERTS, **choices))
    assert caught.value.allowed


@settings(max_examples=25)
@given(
    st.permutations(["pp", "dp", "cp", "tp"]),
    st.sampled_from([(2, 4, 2, 2), (4, 2, 1, 2), (2, 4, 1, 1)]),
    st.sampled_from([0, 2]),
    st.randoms(use_true_random=False),
)
def test_every_coordinate_stands_where_the_plan_says(order, degrees, shared, random):
    pp, dp, cp, tp = degrees
    world = pp * dp * cp * tp
    numbers = random.sample(range(world), world) if random.random() < 0.5 else ()
    chosen = plan(
        pp=pp, dp=dp, cp=cp, tp=tp, mesh_order=tuple(order), device_order=tuple(numbers),
        sharding="zero1", sharding_degree=shared * cp,
    )  # fmt: skip
    program = lowered(chosen)
    placement = place(program, Cluster(f"{world}xcpu"), device_order(chosen))
    devices = placement.devices.reshape(degrees)
    for p, d, c, t in itertools.product(*map(range, degrees)):
        assert devices[p, d, c, t] == chosen.device_at(pp=p, dp=d, cp=c, tp=t)
    for p in range(pp if tp > 1 else 0):
        group = placement.ends(program, p, Kind.COLLECTIVE, Exchange(("tp",)))
        assert group == tuple(chosen.device_at(pp=p, tp=t) for t in range(tp))
