"""`lower`: a plan becomes a program: the schedule's orders, then one pass after the other, each a function of programs."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.program import Program
from meshwright.ir.table import Microbatch, ValueBytes, Work
from meshwright.lowering.memory.offload import state_works
from meshwright.lowering.memory.recompute import REMADE, Recompute
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.plan_pass import (
    OFFLOAD,
    check_passes,
    connect_stages,
    options_of,
    place_receives,
    step_passes,
    unshard,
)
from meshwright.lowering.sharding.adapted import check_adapted
from meshwright.lowering.sharding.canonical import ALGORITHM, CANONICAL, CanonicalReduction, canonical_sizes
from meshwright.lowering.sharding.gather import GatherParameters
from meshwright.lowering.sharding.reduced_shard import reduced_shards
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.sharding.whole_gradient import whole_gradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.stage_edge import with_sizes_beside
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.choice import (
    algorithm_of,
    check_vocabulary,
    vocabulary_orders,
    with_vocabulary,
)
from meshwright.lowering.vocabulary.work import vocabulary_works
from meshwright.schedules.order import Schedule
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.parameter_group import (
    HeldGroup,
    gather_exchanges,
    gradient_sizes,
    group_bytes,
    held_groups,
    num_stepped_parameters,
    reduction_algorithms,
    stepped_sizes,
)
from meshwright.stage.group.value_size import moment_bytes
from meshwright.stage.mesh import collapsed_axes
from meshwright.stage.piece import piece_layers, refined
from meshwright.stage.saved.recomputed import is_partly_recomputed, is_recomputed
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.stage.saved.size import (
    kept_bytes_per_token,
    local_pending_bytes_per_token,
    remade_bytes_per_token,
)
from meshwright.stage.stage_pass import works


def lower(
    plan: Plan, schedule: Schedule, *, step: bool = True, pieces: Sequence[int] | None = None
) -> Program:
    """The program of one training step; lists over ``pp``, all other axes collapsed.

    Args:
        schedule: the function behind ``plan.schedule`` (the catalog finds it by name).
        step: with gradient reduction and optimizer step.
        pieces: stages of the program for each stage of the pipeline (`refine.num_pieces` chooses); None: one each.

    Raises:
        PlanError: the plan asks for what lowering does not do yet; the message says what.
        ScheduleError: the schedule returned something that is no order of the plan's stages and microbatches.
    """
    check_passes(plan)
    check_vocabulary(plan)
    check_adapted(plan, schedule.num_copies)
    counts = tuple(pieces) if pieces is not None else (1,) * plan.num_stages
    stages = piece_layers(plan.stages(), counts)
    held = held_groups(plan, stages)
    program = _computes(plan, schedule, counts, stages, held)
    if plan.split_backward and not schedule.splits_backward:
        program = SplitBackward()(program)
    if plan.recompute == "full":
        program = _recompute(plan, stages)(program)
    program = with_vocabulary(plan, program, stages)
    connect = connect_stages(plan, counts)
    if connect is not None:
        program = with_sizes_beside(connect(program))
    if step:
        program = _reduced(plan, held, program)
    program = Transfers()(program)
    if step:
        program = OptimizerStep()(program)
        for step_pass in step_passes(plan):
            program = step_pass(program)
    if step and plan.sharding in ("zero1", "zero2"):
        program = _gathered(plan, held, program)
    if plan.sharding == "zero3":
        program = unshard(plan, gather_exchanges(held))(program)
    buffers = whole_gradients(plan, held) if step else None
    if buffers is not None:
        program = buffers(program)
    shards = reduced_shards(plan, held) if step else None
    if shards is not None:
        program = shards(program)
    place = place_receives(plan)
    if place is not None:
        program = place(program)
    return with_works(program, _works(plan, stages, num_stepped_parameters(program, held)))


def _reduced(plan: Plan, held: Sequence[HeldGroup], program: Program) -> Program:
    """The program with the reductions of its gradients."""
    if options_of(plan, CANONICAL) is not None:
        program = CanonicalReduction(plan.num_microbatches)(program)
        sizes = canonical_sizes(plan, held)
        algorithms = dict.fromkeys(sizes, ALGORITHM)
    else:
        sizes, algorithms = gradient_sizes(plan, held), reduction_algorithms(held, plan)
    program = program.with_tables(sizes=tuple(dict.fromkeys(sizes.values())))
    names = {g: size.name for g, size in sizes.items()}
    return ReduceGradients(algorithms, names, "reduce" in plan.overlap, plan.sharding == "zero3")(program)


def _gathered(plan: Plan, held: Sequence[HeldGroup], program: Program) -> Program:
    """The program with gathers of what was stepped."""
    sizes, exchanges = stepped_sizes(plan, held), gather_exchanges(held)
    program = program.with_tables(sizes=(*program.tables.sizes, *sizes.values()))
    named = {g: each._replace(size=sizes[g].name) if g in sizes else each for g, each in exchanges.items()}
    return GatherParameters(named, "gather" in plan.overlap)(program)


def _works(
    plan: Plan, stages: Sequence[StageLayers], num_stepped: Sequence[int]
) -> dict[tuple[str, int], Work]:
    """What every name does on every stage, those of passes that the plan asks for among them."""
    made, algorithm = works(plan, stages, num_stepped), algorithm_of(plan)
    if algorithm is not None:
        made |= vocabulary_works(plan, algorithm, len(stages))
    if options_of(plan, OFFLOAD) is not None:
        made |= state_works(num_stepped, moment_bytes(plan), plan.dtype)
    return made


def _recompute(plan: Plan, stages: Sequence[StageLayers]) -> Recompute:
    """All stages of the program, or those with blocks that are recomputed, wholly or in part."""
    whole = tuple(number for number, layers in enumerate(stages) if is_recomputed(plan, layers))
    partly = tuple(number for number, layers in enumerate(stages) if is_partly_recomputed(plan, layers))
    return Recompute(None if len(whole) == len(stages) else whole, partly)


def _computes(
    plan: Plan,
    schedule: Schedule,
    counts: Sequence[int],
    stages: Sequence[StageLayers],
    held: Sequence[HeldGroup],
) -> Program:
    """The schedule's computes on the stages of the program, with the sizes of what they touch."""
    orders = schedule.orders(plan.pp, plan.num_microbatches, plan.num_chunks)
    orders = refined(vocabulary_orders(plan, orders), counts)
    m = plan.num_microbatches
    program = program_of_orders(
        orders, microbatches=[Microbatch(plan.tokens_per_microbatch, 1.0 / m)] * m, num_stages=len(stages),
        groups=tuple(each.group for each in held), collapsed=collapsed_axes(plan),
    )  # fmt: skip
    return program.with_tables(value_bytes=value_bytes(plan, stages, held))


def value_bytes(
    plan: Plan, stages: Sequence[StageLayers], held: Sequence[HeldGroup]
) -> tuple[ValueBytes, ...]:
    """Bytes of every kind of value on one device: per token of the whole microbatch for what it has, else per group."""
    model = plan.model
    # every device of a tensor-parallel group sends its share, whether it holds more or not
    boundary = (float(boundary_bytes_per_token(model, plan.dtype)) / (plan.cp * plan.tp),)
    remade = tuple(remade_bytes_per_token(plan, layers) for layers in stages)
    saved = tuple(kept_bytes_per_token(plan, each) - own for each, own in zip(stages, remade, strict=True))
    pending = tuple(local_pending_bytes_per_token(plan, layers) for layers in stages)
    return (
        ValueBytes("activation", boundary, per_token=True),
        ValueBytes("gradient", boundary, per_token=True),
        ValueBytes("saved", saved, per_token=True),
        ValueBytes("pending", pending, per_token=True),
        *((ValueBytes(REMADE.name, remade, per_token=True),) if any(remade) else ()),
        *group_bytes(plan, held),
    )
