"""Parameter groups of a plan: what one device holds of each stage, along which axes it is copied, and what is sharded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from meshwright.ir.axis import owns
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, ParameterGroup, Size, ValueBytes
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import trains_table
from meshwright.specs.model.layers import StageLayers, begins_decoder
from meshwright.specs.plan.plan import Plan
from meshwright.stage.alike import of_alike
from meshwright.stage.group.value_size import (
    LocalParameters,
    StateSize,
    frozen_size,
    gradient_size,
    num_local_parameters,
    num_partial_parameters,
    num_table_parameters,
    num_trained_parameters,
    optimizer_size,
    parameter_size,
)
from meshwright.stage.mesh import (
    collapsed_axes,
    data_axes,
    expert_data_axes,
    folds_experts,
    gradient_axes,
    shard_axes,
    tensor_axes,
    value_axes,
)
from meshwright.stage.piece import is_vocabulary_split

# How gradients of copies are added up, as `Exchange.algorithm`.
RING_SUM, SCATTERED_SUM, TWO_LEVEL_SUM = "ring", "reduce_scatter", "all_reduce.two_level"
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
        num_partial: those that train of which a device of a tensor-parallel group has all, and a term of the gradients.
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
    num_partial: int = 0


def held_groups(plan: Plan, stages: Sequence[StageLayers]) -> tuple[HeldGroup, ...]:
    """Groups of a plan whose program has these stages: one a stage, its experts apart where they are divided, and a
    table that two stages tie."""
    tied = stages_of_table(plan, stages) if is_split_tie(plan, stages) else ()
    held, made = [], _GroupsOfPlan(plan)
    for number, counts in enumerate(of_alike(plan, stages, partial(_counts, plan))):
        (dense, experts), (trained, trained_experts), num_partial = counts
        if number in tied:
            dense, trained = dense - num_table_parameters(plan), trained - num_table_parameters(plan)
        if experts and folds_experts(plan):
            held.append(made.group(f"stage{number}", (number,), (dense, trained), made.axes, num_partial))
            own = (experts, trained_experts)
            held.append(made.group(f"stage{number}{OF_EXPERTS}", (number,), own, expert_data_axes(plan)))
        else:
            own = (dense + experts, trained + trained_experts)
            held.append(made.group(f"stage{number}", (number,), own, made.axes, num_partial))
    if tied:
        table = num_table_parameters(plan)
        held.append(made.group(TIED, tied, (table, table), made.axes))
    return tuple(held)


def _counts(plan: Plan, layers: StageLayers) -> tuple[LocalParameters, LocalParameters, int]:
    """Parameters of a stage on one device: all, those that train, and those of which a device has a term of the gradients."""
    trained = num_trained_parameters(plan, layers)
    return num_local_parameters(plan, layers), trained, num_partial_parameters(plan, layers)


class _GroupsOfPlan:
    """Makes the groups of one plan; `axes` are those along which devices hold the same parameters and different data."""

    def __init__(self, plan: Plan) -> None:
        self.axes = data_axes(plan)
        self._element_bytes = dtype_bytes(plan.dtype)
        self._divides_values = plan.shared.divides_values
        self._sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
        self._tensor = tensor_axes(plan)
        self._shared = shard_axes(plan), value_axes(plan), gradient_axes(plan)

    def group(
        self, name: str, stages: tuple[int, ...], counts: tuple[int, int], axes: tuple[str, ...], num_partial: int = 0,
    ) -> HeldGroup:  # fmt: skip
        """One of so many parameters, of which so many train, with copies along these axes."""
        num_parameters, num_trained = counts
        copied = axes if num_trained else ()  # what is frozen has no gradient to be summed over its copies
        divided = axes if self._divides_values else copied
        state, values, gradients = (
            tuple(axis for axis in along if axis in divided and self._sizes[axis] > 1)
            for along in self._shared
        )
        num_state, num_values, num_gradients = map(self._num_members, (state, values, gradients))
        summed, scattered = self._tensor if num_partial else (), gradients if num_trained else ()
        num_bytes = num_parameters * self._element_bytes
        return HeldGroup(
            ParameterGroup(name, stages, num_bytes, copied, summed, scattered), num_parameters, num_trained,
            state, num_state, values, num_values, gradients, num_gradients, num_partial,
        )  # fmt: skip

    def _num_members(self, axes: tuple[str, ...]) -> int:
        return prod(self._sizes[axis] for axis in axes)


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
    """Bytes of the whole gradient of every group of which those of every microbatch are scattered."""
    known, found = dict[int, Size](), dict[int, Size]()
    for g, each in enumerate(held):
        if each.group.scattered:
            num_bytes = float(dtype_bytes(plan.gradient_dtype) * each.num_trained)
            found[g] = known.setdefault(each.num_trained, Size(f"gradient{len(known)}", num_bytes, num_bytes))
    return found


def scatter_exchanges(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Exchange]:
    """How the gradients of every microbatch are scattered, by group."""
    return {
        g: Exchange(held[g].group.scattered, size=size.name, algorithm=SCATTERED_SUM)
        for g, size in gradient_sizes(plan, held).items()
    }


def partial_sizes(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Size]:
    """Bytes that every group of which devices have terms of gradients sums: of these, what is stepped on a device. They stand
    in front of the others, so that the first of those that share the state may have all."""
    size, known, found = dtype_bytes(plan.gradient_dtype), dict[tuple[float, float], Size](), {}
    for g, each in enumerate(held):
        if each.num_partial:
            most = min(each.num_partial, -(-each.num_trained // each.num_shards))
            key = size * each.num_partial / each.num_shards, float(size * most)
            found[g] = known.setdefault(key, Size(f"partial{len(known)}", *key))
    return found


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
    """How every group is reduced along the axes along which it has not been scattered already."""
    sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
    found = {}
    for g, each in enumerate(held):
        copies = [a for a in each.group.replicated if sizes[a] > 1 and a not in each.group.scattered]
        found[g] = reduction_algorithm([a for a in each.shards if a not in each.group.scattered], copies)
    return found
