"""Handlers of what a parameter group moves: REDUCE_GRAD, UNSHARD, GATHER_PARAM between ranks, LOAD_STATE, STORE_STATE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.executor.state.group_state import GroupState
from meshwright.executor.state.host_moments import HostMoments
from meshwright.executor.team.collective import (
    combine,
    combining,
    gather,
    scatter_sum,
    start_gather,
    wait_all,
)


def reduce_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Sum of a group's gradients over its copies; losses carry their tokens' weights, so the sum is the whole.

    Where the copies share the state, each keeps the sum of its shard.
    """
    group: GroupState = inputs[0]
    team = context.groups.transport(row)
    if group.contributions is not None:
        return _gather_contributions(context, row, group)
    division = group.division
    if division is not None and division.has_hops:
        return _reduce_in_hops(context, row, group)
    whole = group.to_reduce()
    if division is not None and row.members == group.team.ranks:
        context.links.pass_ring(row.members, whole.nbytes, 1, row.name)
        group.reduced(scatter_sum(division.for_state(whole), team))
        return Pending(lambda: (group,))
    context.links.pass_ring(row.members, whole.nbytes, 2, row.name)
    total = combining(whole, team)

    def wait() -> Sequence[Any]:
        total()
        if division is not None:
            low, high = group.own
            group.reduced(whole[low:high].clone())
        return (group,)

    return Pending(wait)


def _reduce_in_hops(context: Context, row: Row, group: GroupState) -> Pending:
    """Scattered among those who share gradients, then state; where copies of the state are left, summed over these."""
    own = group.scattered_in_hops()
    if len(row.members) > group.team.degree:
        whole = own.new_zeros(group.layout.num_padded)
        whole[slice(*group.own)] = own
        context.links.pass_ring(row.members, whole.nbytes, 2, row.name)
        combine(whole, context.groups.transport(row))
        own = whole[slice(*group.own)].clone()
    group.reduced(own)
    return Pending(lambda: (group,))


def _gather_contributions(context: Context, row: Row, group: GroupState) -> Pending:
    """Everybody's gradients of every microbatch, then their sum in one order."""
    assert group.contributions is not None, "who keeps contributions apart was asked"
    team, num = context.groups.transport(row), len(row.members)
    orders, values = group.contributions.stacked()
    context.links.pass_ring(row.members, num * values.nbytes, 1, row.name)
    all_orders, works = start_gather(orders, team)
    all_values, more = start_gather(values, team)

    def wait() -> Sequence[Any]:
        wait_all([*works, *more])
        group.add_in_order(all_orders, all_values)
        return (group,)

    return Pending(wait)


def unshard(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """All parameters of a group, one behind the other, for the computes that read them."""
    group: GroupState = inputs[0]
    shards, team, num = group.gathered_shards(), context.groups.transport(row), len(row.members)
    whole = shards[0].new_empty(num * sum(shard.numel() for shard in shards))
    context.links.pass_ring(row.members, whole.nbytes, 1, row.name)
    works = []
    for shard, part in zip(
        shards, torch.split(whole, [num * shard.numel() for shard in shards]), strict=True
    ):
        part.view(num, shard.numel())[team.rank()].copy_(shard)
        works += gather(part, team)

    return Pending.of(works, whole)


def gather_parameters(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """After a step on shards: everybody's, into the parameters."""
    group: GroupState = inputs[0]
    assert group.values is not None, "what is gathered behind the step is kept whole"
    context.links.pass_ring(row.members, group.values.nbytes, 1, row.name)
    works = gather(group.values, context.groups.transport(row))

    return Pending.of(works, group)


def load_state(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The optimizer's state of a stage's groups, on the device."""
    return _moved(context, row, HostMoments.load)


def store_state(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The optimizer's state of a stage's groups, on the host; the device's memory is free."""
    return _moved(context, row, HostMoments.store)


def _moved(context: Context, row: Row, move: Callable[[HostMoments], None]) -> Sequence[Any]:
    groups: dict[int, GroupState] = context.training.groups
    for g in sorted({name.index for names in row.writes for name in names or ()} & groups.keys()):
        move(groups[g].moments)
    return row.outputs(lambda name: groups.get(name.index))


HANDLERS: Handlers = {
    "REDUCE_GRAD": reduce_gradients,
    "UNSHARD": unshard,
    "GATHER_PARAM": gather_parameters,
    "LOAD_STATE": load_state,
    "STORE_STATE": store_state,
}
