"""StageWork: one stage of a plan, or a piece of one, with what everything that is said of it rests on, worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.context_parallel import ContextParallel
from meshwright.stage.group.value_size import (
    LocalParameters,
    num_local_block_parameters,
    num_local_end_parameters,
)
from meshwright.stage.operator.layer import MicrobatchShape
from meshwright.stage.saved.recomputed import recomputed_layers
from meshwright.stage.saved.saved import SavingContext
from meshwright.stage.saved.size import saving_context


def microbatch_shape(plan: Plan) -> MicrobatchShape:
    """What one instruction of the plan works on, on one device."""
    return attending_shape(plan, plan.context_parallel)


def attending_shape(plan: Plan, way: ContextParallel) -> MicrobatchShape:
    """The same where devices of cp attend in this way, whatever the plan says."""
    return MicrobatchShape(
        plan.microbatch_size, plan.workload.sequence_length // plan.model.num_halves, plan.dtype, plan.tp, plan.ep, plan.cp,
        plan.sequence_parallel, plan.expert_tp, plan.core_attention, plan.gradient_dtype,
        arrangement=way.arrangement, heads_degree=way.heads_degree, in_pieces=way.travels,
        document_length=_document_length(plan), expert_load=plan.workload.expert_load,
    )  # fmt: skip


def document_step(plan: Plan) -> int:
    """Lengths of documents that are all alike are multiples of it: a ring's devices have equal pieces of each."""
    ring_degree = plan.cp // plan.context_parallel.heads_degree
    return 2 * ring_degree if ring_degree > 1 else 1


def _document_length(plan: Plan) -> int:
    length, step = plan.workload.document_length, document_step(plan)
    return length if length % step == 0 else max(step, length // step * step)


@dataclass(frozen=True, eq=False)
class StageWork:
    """The blocks and ends of a plan that one stage has. Bytes and parameters are of one device.

    Attributes:
        plan, layers: whose, and which blocks and ends.
        shape: what one instruction works on: tokens, formats, degrees.
        context: which tensors the plan's software keeps for the backward.
        element_bytes: of one number of the plan's format.
    """

    plan: Plan
    layers: StageLayers
    shape: MicrobatchShape
    context: SavingContext
    element_bytes: int

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""
        return self.plan.model

    @cached_property
    def num_tokens(self) -> int:
        """Of a microbatch, on one device of a context-parallel group."""
        return self.shape.num_tokens

    @cached_property
    def kinds(self) -> tuple[tuple[int, int], ...]:
        """One block of each kind that the stage has, and how many there are of it."""
        return self.model.block_kinds(self.layers.first_block, self.layers.num_blocks)

    @cached_property
    def recomputed(self) -> StageLayers:
        """The part that follows `plan.recompute`."""
        return recomputed_layers(self.plan, self.layers)

    @cached_property
    def block_parameters(self) -> LocalParameters:
        """Of all blocks, before sharding."""
        return num_local_block_parameters(self.plan, self.layers)

    @cached_property
    def num_end_parameters(self) -> int:
        """Of embedding, final norm and head, before sharding."""
        return num_local_end_parameters(self.plan, self.layers)

    @cached_property
    def num_largest_block(self) -> int:
        """Parameters of the largest block, before sharding."""
        single = (StageLayers(block, 1, has_embedding=False, has_head=False) for block, _ in self.kinds)
        return max((sum(num_local_block_parameters(self.plan, layers)) for layers in single), default=0)


def stage_works(plan: Plan, stages: Sequence[StageLayers]) -> tuple[StageWork, ...]:
    """Of stages, or pieces of them, of one plan: what is the same for all is asked of the plan once."""
    shape, context, size = microbatch_shape(plan), saving_context(plan), dtype_bytes(plan.dtype)
    return tuple(StageWork(plan, layers, shape, context, size) for layers in stages)
