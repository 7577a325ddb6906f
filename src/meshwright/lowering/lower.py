"""`lower`: a plan becomes a program: the schedule's orders, then the passes of the pipeline, each a function of programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import sub

from meshwright.ir.core_vocabulary import REMADE
from meshwright.ir.program import Program
from meshwright.ir.table import Microbatch, ValueBytes, Work
from meshwright.lowering.memory.offload import OptimizerOnHost
from meshwright.lowering.memory.recompute import recomputed
from meshwright.lowering.order import by_hop, program_of_orders, with_works
from meshwright.lowering.pipeline import Implied, Lowering, PlanPass, named_passes, ordered
from meshwright.lowering.segment.beside_plan import hidden_in_pairs
from meshwright.lowering.segment.segmented import (
    is_segmented,
    segmented,
    works_of_groups,
    works_of_segments,
)
from meshwright.lowering.segment.shared_choices import SharedChoices
from meshwright.lowering.sequence.group_rows import computes_of_groups
from meshwright.lowering.sharding.adapted import check_adapted
from meshwright.lowering.sharding.canonical import CANONICAL, CanonicalOrder
from meshwright.lowering.sharding.gather import Unsharding, gathered
from meshwright.lowering.sharding.gradient_norm import Clipping, PostValidation
from meshwright.lowering.sharding.group_layout import laid_out
from meshwright.lowering.sharding.partial_sum import partial_sums
from meshwright.lowering.sharding.reduced_shard import reduced_shards
from meshwright.lowering.sharding.reduction import OptimizerStep, reductions
from meshwright.lowering.sharding.router_correction import RouterCorrection
from meshwright.lowering.sharding.scatter import scattered
from meshwright.lowering.sharding.whole_gradient import whole_gradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.receive_place import PlaceReceives
from meshwright.lowering.transfer.stage_edge import Connection
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.choice import split_vocabulary, vocabulary_orders, works_of_vocabulary
from meshwright.schedules.order import Schedule
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.stage.alike import of_alike
from meshwright.stage.group.parameter_group import group_bytes, held_groups, num_stepped_parameters
from meshwright.stage.mesh import TENSOR, collapsed_axes
from meshwright.stage.piece import has_vocabulary_passes, piece_layers
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.stage.saved.size import (
    kept_bytes_per_token,
    local_pending_bytes_per_token,
    remade_bytes_per_token,
)
from meshwright.stage.stage_pass import works


def _adds_up(lowering: Lowering) -> bool:
    """Are the gradients of microbatches added as they are made, and not kept apart?"""
    return lowering.plan.options_of(CANONICAL) is None


# Passes that fields of a plan imply, in the order in which they stand where what they declare leaves it open.
IMPLIED: tuple[Implied | Unsharding, ...] = (
    Implied(
        "split_backward", lambda _: SplitBackward(),
        when=lambda asked: asked.plan.split_backward and not asked.schedule.splits_backward,
    ),
    Implied(
        "recompute", recomputed, after=("split_backward",), when=lambda asked: asked.plan.recompute == "full"
    ),
    Implied(
        "split_vocabulary", split_vocabulary, after=("recompute",), of_works=works_of_vocabulary,
        when=lambda asked: has_vocabulary_passes(asked.plan),
    ),
    Implied("refine", segmented, after=("recompute", "split_vocabulary"), when=is_segmented),
    Implied(
        "scatter_gradients", scattered, is_of_step=True,
        after=("split_backward", "recompute", "split_vocabulary", "refine"), before=("reduce_gradients", "transfers"),
    ),
    Implied("reduce_gradients", reductions, after=("split_vocabulary", "refine"), before=("transfers",), is_of_step=True),
    Implied(
        "sum_partial", partial_sums, after=("reduce_gradients", "refine"), before=("transfers",), is_of_step=True
    ),
    Implied("transfers", lambda _: Transfers(), after=("split_vocabulary", "refine")),
    Implied(
        "optimizer_step", lambda _: OptimizerStep(), after=("reduce_gradients", "sum_partial", "transfers"), is_of_step=True
    ),
    Implied(
        "gather_parameters", gathered, is_of_step=True,
        after=("optimizer_step", "clip_gradients", "post_validation", "offload_optimizer"),
        when=lambda asked: asked.plan.shared.divides_state and not asked.plan.shared.steps_values,
    ),
    Unsharding(),
    Implied(
        "whole_gradients", whole_gradients, after=("unshard", "gather_parameters"), is_of_step=True,
        when=lambda asked: not has_vocabulary_passes(asked.plan) and _adds_up(asked),
    ),
    Implied(
        "reduced_shards", reduced_shards, after=("whole_gradients",), is_of_step=True,
        when=lambda asked: (
            asked.plan.shared.divides_state and not asked.plan.shared.divides_gradients
            and _adds_up(asked)
        ),
    ),
    Implied(
        "lay_out_groups", laid_out, is_of_step=True,
        after=(
            "split_backward", "recompute", "split_vocabulary", "transfers", "optimizer_step", "clip_gradients",
            "post_validation", "offload_optimizer", "gather_parameters", "unshard", "whole_gradients", "reduced_shards",
        ),
    ),
)  # fmt: skip
# Passes that a plan may name, with the options that are their fields.
NAMED: dict[str, type] = {
    one.name: one
    for one in (
        *(Connection, PlaceReceives, Clipping, PostValidation),
        *(OptimizerOnHost, CanonicalOrder, Unsharding, RouterCorrection, SharedChoices),
    )
}


def lower(
    plan: Plan, schedule: Schedule, *, step: bool = True, pieces: Sequence[int] | None = None,
    in_segments: bool = False,
) -> Program:  # fmt: skip
    """The program of one training step; lists over ``pp``, all other axes collapsed.

    Args:
        schedule: the function behind ``plan.schedule`` (the catalog finds it by name).
        step: with gradient reduction and optimizer step.
        pieces: stages of the program for each stage of the pipeline (`piece.num_pieces` chooses); None: one each.
        in_segments: what is sent inside a stage is rows (`Refine`); else it is priced within its computes (`Inner`).

    Raises:
        PlanError: the plan asks for what lowering does not do yet; the message says what.
        ScheduleError: the schedule returned something that is no order of the plan's stages and microbatches.
    """
    if plan.model.is_adapted:
        check_adapted(plan, schedule.num_copies)
    counts = tuple(pieces) if pieces is not None else (1,) * plan.num_stages
    stages = piece_layers(plan.stages(), counts)
    return lowered(Lowering(plan, schedule, counts, stages, held_groups(plan, stages), step, in_segments))


def lowered(lowering: Lowering) -> Program:
    """The program of these facts. Raises PlanError and ScheduleError as `lower`."""
    plan, stages = lowering.plan, lowering.stages
    pipeline = pipeline_of(plan)
    program = _computes(lowering)
    for one in pipeline:
        made = one.made(lowering)
        program = program if made is None else made(program)
    of_parts = dict[tuple[str, int, int], Work]()
    if is_segmented(lowering):
        found, of_parts = works_of_segments(lowering, program)
    else:
        found = works(plan, stages, num_stepped_parameters(program, lowering.held))
    for one in pipeline:
        found |= getattr(one, "works", lambda *_: {})(lowering, program)
    program = with_works(program, found, of_parts)
    if not is_segmented(lowering):
        pieces = [stage for stage, count in enumerate(lowering.counts) for _ in range(count)]
        program = hidden_in_pairs(program, plan, lowering.schedule, pieces)
    return program if lowering.groups is None else works_of_groups(lowering, program, lowering.groups)


def pipeline_of(plan: Plan) -> list[PlanPass]:
    """The passes of a plan in their order: those that its fields imply, and those that it names instead or beside.

    Raises PlanError for names nobody knows, options that do not fit, and passes that contradict each other.
    """
    named = {one.name: one for one in named_passes(plan, NAMED)}
    implied = {one.name: one for one in IMPLIED}
    return ordered({**implied, **named}.values())


def _computes(lowering: Lowering) -> Program:
    """The schedule's computes on the stages of the program, with the sizes of what they touch."""
    plan = lowering.plan
    if lowering.groups is not None:
        axes = [axis for axis in collapsed_axes(plan) if axis.name == TENSOR]
        program = computes_of_groups(lowering.groups, [each.group for each in lowering.held], axes)
        return program.with_tables(value_bytes=value_bytes(lowering))
    orders = lowering.schedule.orders(plan.pp, plan.num_microbatches, plan.num_chunks)
    if has_vocabulary_passes(plan):
        orders = vocabulary_orders(plan, orders)
    m = plan.num_microbatches
    program = program_of_orders(
        orders,
        microbatches=[Microbatch(plan.tokens_per_microbatch, 1.0 / m)] * m, num_stages=len(lowering.stages),
        groups=tuple(each.group for each in lowering.held), collapsed=collapsed_axes(plan),
        skips_stages=lowering.schedule.skips_stages, pieces=lowering.counts,
    )  # fmt: skip
    sizes = value_bytes(lowering)
    if lowering.schedule.skips_stages:
        held = {"saved", "pending", REMADE.name}
        held |= {"activation", "gradient"} if plan.model.num_encoder_layers else set()
        sizes = tuple(
            s._replace(by_index=by_hop(program, s.by_index)) if s.kind in held else s for s in sizes
        )
    return program.with_tables(value_bytes=sizes)


def value_bytes(lowering: Lowering) -> tuple[ValueBytes, ...]:
    """Bytes of every kind of value on one device: per token of the whole microbatch for what it has, else per group."""
    plan, stages = lowering.plan, lowering.stages
    received, sent = boundary_bytes(plan, stages)
    remade, kept, pending = (
        of_alike(plan, stages, partial(size, plan))
        for size in (remade_bytes_per_token, kept_bytes_per_token, local_pending_bytes_per_token)
    )
    saved = tuple(map(sub, kept, remade))
    named = {"activation": received, "gradient": sent, "saved": saved, "pending": pending}
    named |= {REMADE.name: remade} if any(remade) else {}
    # blocks of an encoder-decoder see one half of every window
    halves = plan.model.num_halves
    per_token = (
        ValueBytes(kind, tuple(size / halves for size in sizes), per_token=True)
        for kind, sizes in named.items()
    )
    return (*per_token, *group_bytes(plan, lowering.held))


def boundary_bytes(plan: Plan, stages: Sequence[StageLayers]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bytes per token of what every stage gets and gives: one number where all are alike. Every device of a tensor-parallel
    group sends its share, whether it holds more or not."""
    num = 1 if not plan.model.num_encoder_layers else len(stages)

    def size(block: int) -> float:
        return float(boundary_bytes_per_token(plan.model, plan.dtype, block)) / (plan.cp * plan.tp)

    received = tuple(size(layers.first_block) for layers in stages[:num])
    return received, tuple(size(layers.first_block + layers.num_blocks) for layers in stages[:num])
