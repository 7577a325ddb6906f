"""`lower`: a plan becomes a program: the schedule's orders, then one pass after the other, each a function of programs."""

from __future__ import annotations

from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Microbatch, ParameterGroup, ValueBytes, Work
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.recompute import Recompute
from meshwright.lowering.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer import Transfers
from meshwright.schedules.order import Schedule
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.layer_operator import MicrobatchShape, step_operators
from meshwright.specs.operator import total_bytes, total_flops
from meshwright.specs.plan import Plan
from meshwright.specs.saved import (
    boundary_bytes_per_token,
    num_stage_parameters,
    pending_gradient_bytes_per_token,
    saved_bytes_per_token,
)
from meshwright.specs.stage_work import PASSES, stage_operators

ADAMW_STATES = 2  # first and second moment, as large as the parameters
TIED = "tied"  # name of the group of a table that the first and the last stage share


def lower(plan: Plan, schedule: Schedule, *, step: bool = True) -> Program:
    """The program of one training step; lists over ``pp``, the data-parallel axis collapsed.

    Args:
        schedule: the function behind ``plan.schedule`` (the catalog finds it by name).
        step: with gradient reduction and optimizer step.

    Raises:
        PlanError: the plan asks for what lowering does not do yet; the message says what.
        ScheduleError: the schedule returned something that is no order of the plan's stages and microbatches.
    """
    _refuse_unknown(plan)
    orders = schedule.orders(plan.pp, plan.num_microbatches, plan.num_chunks)
    m = plan.num_microbatches
    microbatches = [Microbatch(plan.tokens_per_microbatch, 1.0 / m)] * m
    collapsed = [Axis("dp", plan.dp, materialised=False)]
    program = program_of_orders(
        orders, microbatches=microbatches, num_stages=plan.num_stages, groups=parameter_groups(plan),
        collapsed=collapsed,
    )  # fmt: skip
    program = program.with_tables(value_bytes=value_bytes(plan))
    if plan.split_backward and not schedule.splits_backward:
        program = SplitBackward()(program)
    if plan.recompute == "full":
        program = Recompute()(program)
    if step:
        program = ReduceGradients()(program)
    program = Transfers()(program)
    if step:
        program = OptimizerStep()(program)
    return with_works(program, works(plan))


def _refuse_unknown(plan: Plan) -> None:
    for name, value in (("tp", plan.tp), ("cp", plan.cp), ("ep", plan.ep)):
        if value != 1:
            raise PlanError(
                f"the plan asks for {name}={value}", allowed=f"{name}=1 in this version", next="set it to 1"
            )
    if plan.passes:
        raise PlanError(
            f"the plan names passes {[p.name for p in plan.passes]}",
            allowed="recompute and split_backward as fields",
        )


def parameter_groups(plan: Plan) -> tuple[ParameterGroup, ...]:
    """One group a stage, copied along ``dp``; a tied table is a group of its own that two stages use."""
    stages, size = plan.stages(), dtype_bytes(plan.dtype)
    tied = is_split_tie(plan)
    groups = []
    for number, layers in enumerate(stages):
        parameters = num_stage_parameters(plan.model, layers)
        if tied and (layers.has_embedding or layers.has_head):
            parameters -= plan.model.num_embedding_parameters
        groups.append(ParameterGroup(f"stage{number}", (number,), parameters * size, ("dp",)))
    if tied:
        table = plan.model.num_embedding_parameters * size
        groups.append(ParameterGroup(TIED, (0, len(stages) - 1), table, ("dp",)))
    return tuple(groups)


def is_split_tie(plan: Plan) -> bool:
    """Do two stages hold the same table?"""
    return plan.model.has_tied_embeddings and plan.num_stages > 1


def value_bytes(plan: Plan) -> tuple[ValueBytes, ...]:
    """Bytes of every kind of value: per token for what a microbatch has, per group for parameters."""
    model, stages = plan.model, plan.stages()
    boundary = (float(boundary_bytes_per_token(model, plan.dtype)),)
    groups = tuple(float(group.bytes) for group in parameter_groups(plan))
    saved = tuple(float(saved_bytes_per_token(model, layers, plan.dtype)) for layers in stages)
    # what W reads of F is in `saved` already
    pending = tuple(float(pending_gradient_bytes_per_token(model, layers, plan.dtype)) for layers in stages)
    return (
        ValueBytes("activation", boundary, per_token=True),
        ValueBytes("gradient", boundary, per_token=True),
        ValueBytes("saved", saved, per_token=True),
        ValueBytes("pending", pending, per_token=True),
        ValueBytes("parameter", groups),
        ValueBytes("weight_gradient", groups),
        ValueBytes("optimizer_state", tuple(ADAMW_STATES * size for size in groups)),
    )


def works(plan: Plan) -> dict[tuple[str, int], Work]:
    """The work of every instruction name on every stage, operator by operator; a chunk is its share of a stage."""
    shape = MicrobatchShape(plan.microbatch_size, plan.workload.sequence_length, plan.dtype, plan.tp)
    result = {}
    for number, layers in enumerate(plan.stages()):
        for name in PASSES:
            operators = stage_operators(plan.model, layers, name, shape)
            result[name, number] = Work(
                name, shape.num_tokens, (plan.microbatch_size, plan.workload.sequence_length), plan.dtype,
                total_flops(operators), total_bytes(operators), 1.0 / plan.num_chunks, operators,
            )  # fmt: skip
        parameters = num_stage_parameters(plan.model, layers)
        operators = step_operators(parameters, plan.dtype)
        result["STEP", number] = Work(
            "STEP",
            0,
            (parameters,),
            plan.dtype,
            total_flops(operators),
            total_bytes(operators),
            1.0 / plan.num_chunks,
            operators,
        )
    return result
