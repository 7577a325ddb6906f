"""Parameter groups of a plan: what one device holds of each stage, along which axes it is copied, and what is sharded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.ir.axis import owns
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, ParameterGroup, Size, ValueBytes
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import trains_table
from meshwright.specs.model.layers import StageLayers, begins_decoder
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.value_size import (
    StateSize,
    frozen_size,
    gradient_size,
    num_local_parameters,
    num_table_parameters,
    num_trained_parameters,
    optimizer_size,
    parameter_size,
)
from meshwright.stage.mesh import (
    collapsed_axes,
    data_axes,
    expert_data_axes,
    gradient_axes,
    num_members,
    shard_axes,
    value_axes,
)
from meshwright.stage.piece import is_vocabulary_split

# How gradients of copies are added up, as `Exchange.algorithm`.
RING_SUM, SCATTERED_SUM, TWO_LEVEL_SUM = "ring", "reduce_scatter", "all_reduce.two_level"
HOPS = ".hops"  # of an algorithm that scatters among those that share gradients, then among those that share state
OF_EXPERTS = ".experts"  # behind a stage's name: the group of its experts where these are divided
TIED = "tied"  # name of the group of a table that several stages share


@dataclass(frozen=True)
class HeldGroup:
    """A parameter group as one device holds it.

    Attributes:
        group: for the program's table; its bytes are those of the parameters, whole.
        num_parameters: of the group on one device of a tensor-parallel group, before sharding.
        num_trained: those of them that train.
        shards, num_shards: axes of the devices that share one copy of its optimizer's state, and their number.
        value_shards, num_value_shards: the same of its values.
        gradient_shards, num_gradient_shards: the same of its gradients.
    """

    group: ParameterGroup
    num_parameters: int
    num_trained: int
    shards: tuple[str, ...]
    num_shards: int
    value_shards: tuple[str, ...] = ()
    num_value_shards: int = 1
    gradient_shards: tuple[str, ...] = ()
    num_gradient_shards: int = 1


def held_groups(plan: Plan, stages: Sequence[StageLayers]) -> tuple[HeldGroup, ...]:
    """Groups of a plan whose program has these stages: one a stage, its experts apart where they are divided, and a
    table that two stages tie."""
    tied = stages_of_table(plan, stages) if is_split_tie(plan, stages) else ()
    held = []
    for number, layers in enumerate(stages):
        dense, experts = num_local_parameters(plan, layers)
        trained, trained_experts = num_trained_parameters(plan, layers)
        if number in tied:
            dense, trained = dense - num_table_parameters(plan), trained - num_table_parameters(plan)
        if experts and plan.ep > 1:
            held.append(_held(plan, f"stage{number}", (number,), (dense, trained), data_axes(plan)))
            own = (experts, trained_experts)
            name = f"stage{number}{OF_EXPERTS}"
            held.append(_held(plan, name, (number,), own, expert_data_axes(plan)))
        else:
            own = (dense + experts, trained + trained_experts)
            held.append(_held(plan, f"stage{number}", (number,), own, data_axes(plan)))
    if tied:
        table = num_table_parameters(plan)
        held.append(_held(plan, TIED, tied, (table, table), data_axes(plan)))
    return tuple(held)


def _held(
    plan: Plan, name: str, stages: tuple[int, ...], counts: tuple[int, int], axes: tuple[str, ...]
) -> HeldGroup:
    num_parameters, num_trained = counts
    copied = axes if num_trained else ()  # what is frozen has no gradient to be summed over its copies
    sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
    shared = axes if plan.shared.divides_values else copied
    group = ParameterGroup(name, stages, num_parameters * dtype_bytes(plan.dtype), copied)
    shares: list[Any] = []
    for along in (shard_axes(plan), value_axes(plan), gradient_axes(plan)):
        own = tuple(axis for axis in along if axis in shared and sizes[axis] > 1)
        shares += [own, num_members(plan, own)]
    return HeldGroup(group, num_parameters, num_trained, *shares)


def num_stepped_parameters(program: Program, held: Sequence[HeldGroup]) -> tuple[int, ...]:
    """Parameters that the STEP of each stage updates on one device: those of its own groups, or its part of them."""
    t = program.tables
    return tuple(
        sum(-(-held[g].num_trained // held[g].num_shards) for g in own if owns(program, stage, g, at[0]))
        for stage, (own, at) in enumerate(zip(t.groups_of_stage, t.devices_of_stage, strict=True))
    )


def stages_of_table(plan: Plan, stages: Sequence[StageLayers]) -> tuple[int, ...]:
    """Stages that use a tied table: the first, the last, and that with the first block of a decoder behind an encoder."""
    number = plan.model.num_encoder_layers
    return tuple(
        stage
        for stage, layers in enumerate(stages)
        if layers.has_embedding or layers.has_head or begins_decoder(layers, number)
    )


def is_split_tie(plan: Plan, stages: Sequence[StageLayers]) -> bool:
    """Do two stages of the program use the same table, and add to its gradient? Of a frozen one each has a copy."""
    if not trains_table(plan.model, of_head=False):
        return False
    return plan.model.has_tied_embeddings and len(stages) > 1 and not is_vocabulary_split(plan)


def group_bytes(plan: Plan, held: Sequence[HeldGroup]) -> tuple[ValueBytes, ...]:
    """Bytes of parameters, gathered parameters, gradients and optimizer state of every group, on one device."""
    whole = StateSize(dtype_bytes(plan.dtype), is_shared=False)

    own, frozen = parameter_size(plan), frozen_size(plan)
    kept = tuple(
        own.of(each.num_trained, each.num_value_shards)
        + frozen.of(each.num_parameters - each.num_trained, each.num_value_shards)
        for each in held
    )
    gradients, state = gradient_size(plan), optimizer_size(plan)
    return (
        ValueBytes("parameter", kept),
        ValueBytes("gathered_parameter", tuple(whole.of(group.num_parameters, 1) for group in held)),
        ValueBytes(
            "weight_gradient", tuple(gradients.of(e.num_trained, e.num_gradient_shards) for e in held)
        ),
        ValueBytes("optimizer_state", tuple(state.of(e.num_trained, e.num_shards) for e in held)),
    )


def gradient_sizes(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Size]:
    """Bytes of the whole gradient of every group, where a device keeps a part of it only."""
    if not plan.shared.divides_gradients:
        return {}
    size = dtype_bytes(plan.gradient_dtype)
    numbers = sorted({g.num_trained for g in held})
    named = {}
    for place, number in enumerate(numbers):
        num_bytes = float(size * number)
        named[number] = Size(f"gradient{place}", num_bytes, num_bytes)
    return {g: named[each.num_trained] for g, each in enumerate(held)}


def stepped_sizes(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Size]:
    """Bytes that are gathered behind a step of every group of which a part is frozen: of what was stepped."""
    found = {}
    for g, each in enumerate(held):
        if each.num_trained < each.num_parameters:
            num_bytes = float(dtype_bytes(plan.dtype) * each.num_trained)
            found[g] = Size(f"stepped{g}", num_bytes, num_bytes)
    return found


def unshard_exchanges(held: Sequence[HeldGroup]) -> dict[int, Exchange]:
    """How every group whose values are shared by several devices is gathered for computes."""
    return {
        g: Exchange(each.value_shards, algorithm="all_gather")
        for g, each in enumerate(held)
        if each.num_value_shards > 1
    }


def gather_exchanges(held: Sequence[HeldGroup]) -> dict[int, Exchange]:
    """How every group is gathered behind a step: among those that share its state, and not its values."""
    return {
        g: Exchange(tuple(a for a in each.shards if a not in each.value_shards), algorithm="all_gather")
        for g, each in enumerate(held)
        if each.num_shards > each.num_value_shards
    }


def reduction_algorithm(shards: Collection[str], copies: Collection[str]) -> str:
    """How gradients are added up over the axes of their copies: scattered where all of these share the state, in two levels
    where those along `shards` do, else whole."""
    if not shards:
        return RING_SUM
    return SCATTERED_SUM if set(shards) == set(copies) else TWO_LEVEL_SUM


def reduction_algorithms(held: Sequence[HeldGroup], plan: Plan) -> dict[int, str]:
    """How every group is reduced, and whether hop by hop."""
    sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
    found = {}
    for g, each in enumerate(held):
        copies = [axis for axis in each.group.replicated if sizes[axis] > 1]
        is_in_hops = 1 < each.num_gradient_shards < each.num_shards
        found[g] = reduction_algorithm(each.shards, copies) + HOPS * is_in_hops
    return found
