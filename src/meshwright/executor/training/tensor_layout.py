"""How a training's tensors are divided and in which formats they are; the degrees are those of the program's axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from meshwright.executor.layout.tensor_shard import ExpertShard
from meshwright.executor.state.division import Division
from meshwright.executor.state.group_state import Formats
from meshwright.executor.team.rank_team import RankTeam
from meshwright.ir.program import Program
from meshwright.lowering.sharding.canonical import CANONICAL
from meshwright.specs.plan.plan import Dispatch, Plan, Recompute, SharedChoices
from meshwright.specs.plan.token_part import PartsOf, shares_of
from meshwright.specs.sequence.context_parallel import Context, ContextParallel, TokenLayout
from meshwright.specs.sequence.sequence_part import SequencePart, SequenceRun
from meshwright.stage.chain.degrees import InnerDegrees, recomputed_in_segments
from meshwright.stage.mesh import (
    EXPERT,
    EXPERT_TENSOR,
    Axes,
    gradient_axes,
    mesh_axes,
    names_of,
    shard_axes,
    value_axes,
)

# Of what a group's teams have a part each: its state, its values, its gradients, and of what is beside these.
SHARDS, VALUES, GRADIENTS = "shards", "values", "gradients"
BESIDE_VALUES, BESIDE_GRADIENTS = "beside values", "beside gradients"
# Modules that every device of a tensor-parallel group has whole, and whose gradient there is a part: norms of all heads and
# what narrows for them, of the heads there; routers and gates, of what multiplies parts of a sum.
PARTIAL_MODULES = (
    *("query_norm", "key_norm"),
    *("narrow_query", "narrow_query_norm", "narrow_key_value", "narrow_key_value_norm"),
    *("router", "shared_gate"),
)
BRANCH_NORMS = ("attention_norm", "mlp_norm")  # so, too, where parts are parallel branches
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TensorLayout:
    """``tp``: length of that axis. ``shard_axes``: axes of the ranks that share one copy of the optimizer's state;
    ``value_axes``: of the parameters (ZeRO-3); ``gradient_axes``: of gradients (ZeRO-2 and 3).
    ``cp``: length of that axis, along which sequences are divided as ``context``, ``token_layout`` and ``ulysses`` say (a
    plan's).
    ``sequence_parallel``: the residual stream is divided by tokens along tp. ``reduction_dtype``, ``master_dtype``: empty:
    the job's dtype. ``is_canonical``: gradients are added in one order whatever the layout.
    ``mesh``: the axes of a stage's ranks, and what attention and experts make of each (`stage.mesh`);
    ``ep_near`` and ``dispatch`` as of a plan.
    ``recompute``: what runs again in the backward, by segments, and ``shared_choices``, as of a plan. ``fetches_again``: what
    sequence parallelism gathers for a product is gathered again for its backward, not kept.
    ``part_shares``: of the parts of a microbatch that go through a stage one beside the other; of its samples, or as
    ``parts_of`` says of each sequence.
    ``expert_slots``: which device of an expert-parallel group has which experts, layer by layer
    (`ExpertPlacement.slots_in`); empty: neighbouring ones. The model, its checkpoints and records are the same.
    """

    tp: int = 1
    shard_axes: tuple[str, ...] = ()
    value_axes: tuple[str, ...] = ()
    gradient_axes: tuple[str, ...] = ()
    sequence_parallel: bool = False
    reduction_dtype: str = ""
    master_dtype: str = ""
    is_canonical: bool = False
    cp: int = 1
    context: Context = "ring"
    token_layout: TokenLayout = ""
    ulysses: int = 1
    mesh: Axes = ()
    ep_near: int = 1
    dispatch: Dispatch = "copies"
    recompute: Recompute = "none"
    shared_choices: SharedChoices = "none"
    fetches_again: bool = True
    part_shares: tuple[int, ...] = (1,)
    parts_of: PartsOf = "samples"
    expert_slots: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(plan: Plan) -> TensorLayout:
        """What a plan says. Raises PlanError where groups of devices do not nest."""
        lengths = {axis.name: axis.size for axis in mesh_axes(plan)}

        def longer(axes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(axis for axis in axes if lengths.get(axis, 1) > 1)

        return TensorLayout(
            tp=plan.tp,
            shard_axes=longer(shard_axes(plan)),
            value_axes=longer(value_axes(plan)),
            gradient_axes=longer(gradient_axes(plan)),
            sequence_parallel=plan.sequence_parallel and plan.tp > 1,
            reduction_dtype=plan.gradient_dtype,
            master_dtype=plan.master_dtype or plan.dtype,
            is_canonical=plan.options_of(CANONICAL) is not None,
            cp=plan.cp,
            context=plan.context,
            token_layout=plan.token_layout,
            ulysses=plan.ulysses,
            mesh=mesh_axes(plan),
            ep_near=plan.ep_near,
            dispatch=plan.dispatch,
            recompute=recomputed_in_segments(plan),
            shared_choices=plan.shared_choices,
            fetches_again=plan.gathered == "again",
            part_shares=shares_of(plan.token_parts),
            parts_of=plan.parts_of,
        )

    @property
    def inner_degrees(self) -> InnerDegrees:
        """How many devices share a microbatch inside a stage."""
        return InnerDegrees(
            self.tp, self.sequence_parallel, self.fetches_again, cp=self.cp, context=self.context,
            ulysses=self.ulysses, mesh=self.mesh, ep_near=self.ep_near, dispatch=self.dispatch, recompute=self.recompute,
            shared_choices=self.shared_choices,
            num_parts=len(self.part_shares), has_chunks=self.has_chunks,
        )  # fmt: skip

    @property
    def context_parallel(self) -> ContextParallel:
        """How devices along cp attend."""
        return ContextParallel(self.cp, self.context, self.token_layout, self.ulysses)

    @property
    def has_chunks(self) -> bool:
        """Are parts of microbatches chunks of their sequences?"""
        return self.parts_of == "sequence" and len(self.part_shares) > 1

    def part_samples(self, num_samples: int, part: int) -> range:
        """Which samples of a microbatch of so many are in a part. Whole ones: the plan sees to it."""
        return range(num_samples) if self.has_chunks else self._share(num_samples, part)

    def chunk(self, sequence_length: int, part: int) -> SequenceRun | None:
        """Which tokens of sequences so long are in a part; None where it has whole sequences."""
        if not self.has_chunks:
            return None
        own = self._share(sequence_length, part)
        return SequenceRun(sequence_length, len(own), own.start)

    def _share(self, whole: int, part: int) -> range:
        each = whole // sum(self.part_shares)
        first = each * sum(self.part_shares[:part])
        return range(first, first + each * self.part_shares[part])

    def expert_shard(self, program: Program, coordinates: Mapping[str, int]) -> ExpertShard:
        """Which experts the rank with these coordinates has."""
        lengths = {axis.name: axis.size for axis in program.axes}

        def place(axes: tuple[str, ...]) -> tuple[int, int]:
            degree, number = 1, 0
            for name in axes:
                degree, number = degree * lengths[name], number * lengths[name] + coordinates[name]
            return degree, number

        inner = self.inner_degrees
        degree, number = place(inner.expert_axes)
        inner_degree, inner_number = place(names_of(inner.axes, EXPERT_TENSOR))
        token_degree, token_number = place(inner.own_axes)
        near_degree, _ = place(inner.near_axes)
        return ExpertShard(
            degree, number, inner_degree, inner_number, token_degree, token_number, near_degree,
            inner.sends_once, self.expert_slots,
        )  # fmt: skip

    @property
    def tensor_axes(self) -> tuple[str, ...]:
        """Those of the ranks that share every matrix of attention."""
        return self.inner_degrees.tensor_axes

    def held_axes(self, *, of_experts: bool = False) -> tuple[str, ...]:
        """Those along which ranks hold other parts of a group: of experts, or of all else."""
        return names_of(self.inner_degrees.axes, EXPERT_TENSOR, EXPERT) if of_experts else self.tensor_axes

    def divided_axes(self, *, of_experts: bool = False) -> dict[str, tuple[str, ...]]:
        """Axes of every team that a group's state, values and gradients are divided among, by its label; `of_experts`: among
        those who have the same ones."""
        own = self.held_axes(of_experts=of_experts)
        state, values, gradients = (
            tuple(axis for axis in axes if axis not in own)
            for axes in (self.shard_axes, self.value_axes, self.gradient_axes)
        )
        return {
            SHARDS: state, VALUES: values, GRADIENTS: gradients,
            BESIDE_VALUES: tuple(axis for axis in state if axis not in values),
            BESIDE_GRADIENTS: tuple(axis for axis in state if axis not in gradients),
        }  # fmt: skip

    def division(self, program: Program, rank: int, *, of_experts: bool = False) -> Division | None:
        """A rank's teams of everything that is divided; None where nothing is."""
        axes = self.divided_axes(of_experts=of_experts)
        if not axes[SHARDS]:
            return None
        parts = (SHARDS, VALUES, GRADIENTS, BESIDE_VALUES, BESIDE_GRADIENTS)
        return Division(*(RankTeam.along(program, axes[part], rank) for part in parts))

    def part(self, sequence_length: int, rank: int) -> SequencePart | None:
        """The tokens of a rank along cp of sequences so long; None where sequences are whole. Raises PlanError for a length
        that does not divide."""
        if self.cp == 1:
            return None
        return self.context_parallel.part(sequence_length, rank)

    def formats(self, dtype: torch.dtype) -> Formats:
        """Of parameters, gradients and master copy, where parameters have `dtype`."""
        return Formats(dtype, DTYPES.get(self.reduction_dtype, dtype), DTYPES.get(self.master_dtype, dtype))
