"""Handlers of what a parameter group moves: its gradients, its values, and its optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.executor.state.group_state import GroupState
from meshwright.executor.state.host_moments import HostMoments
from meshwright.executor.team.collective import combining, gather, scatter_sum, start_gather, wait_all


def reduce_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Sum of a group's gradients over its copies; losses carry their tokens' weights, so the sum is the whole.

    Where the copies share the state, each keeps the sum of its shard; what has been scattered is a shard already.
    """
    group: GroupState = inputs[0]
    team = context.groups.transport(row)
    if group.contributions is not None:
        return _gather_contributions(context, row, group)
    division, kept = group.division, group.to_reduce()
    if division is not None and row.members == division.reduced.ranks:
        context.links.pass_ring(row.members, kept.nbytes, 1, row.name)
        group.reduced(scatter_sum(division.for_reduction(kept), team))
        return Pending(lambda: (group,))
    context.links.pass_ring(row.members, kept.nbytes, 2, row.name)
    total = combining(kept, team)

    def wait() -> Sequence[Any]:
        total()
        if division is not None:
            group.reduced(group.own_part(kept))
        return (group,)

    return Pending(wait)


def scatter_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """A microbatch's gradients, scattered among those who share them and added to the shard that is kept here."""
    group: GroupState = inputs[0]
    assert group.division is not None, "only what is divided is scattered"
    whole = group.division.for_gradients(group.unscattered.pop(row.microbatch))
    context.links.pass_ring(row.members, whole.nbytes, 1, row.name)
    group.scattered(scatter_sum(whole, context.groups.transport(row)))
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


def sum_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Sum of the gradients of which every device of a tensor-parallel group has a term, of those that are stepped here."""
    group: GroupState = inputs[0]
    group.settle()
    part = group.partial_gradient(context.training.is_partial)
    if part is None:  # all of them are in the shards of others
        return Pending(lambda: (group,))
    context.links.pass_ring(row.members, part.nbytes, 2, row.name)
    total = combining(part, context.groups.transport(row))

    def wait() -> Sequence[Any]:
        total()
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
    "SCATTER_GRAD": scatter_gradients,
    "SUM_GRAD": sum_gradients,
    "UNSHARD": unshard,
    "GATHER_PARAM": gather_parameters,
    "LOAD_STATE": load_state,
    "STORE_STATE": store_state,
}
