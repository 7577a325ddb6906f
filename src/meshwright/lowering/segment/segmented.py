"""Which stages of a plan are chains of segments, and which of these use which parameter group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.core_vocabulary import PENDING, SAVED
from meshwright.ir.program import Program
from meshwright.ir.table import ValueBytes, Work
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.segment.chain_rows import ChainRows
from meshwright.lowering.segment.refine import Refine, StageRows
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.stage.chain.chain import AGAIN, GRADIENT
from meshwright.stage.chain.decoder import InnerDegrees, StageEnds, decoder_chain, recomputes_core, stage_ends
from meshwright.stage.chain.parameters import (
    TABLE,
    is_of_experts,
    segment_parameters,
    trained_parameters,
)
from meshwright.stage.chain.segment_work import between_bytes, kept_bytes, segment_works
from meshwright.stage.group.parameter_group import OF_EXPERTS, TIED, num_stepped_parameters
from meshwright.stage.mesh import collapsed_axes, expert_axes
from meshwright.stage.stage_pass import step_work


def inner_degrees(plan: Plan) -> InnerDegrees:
    """How many devices share a microbatch inside a stage of the plan."""
    sizes = {axis.name: axis.size for axis in collapsed_axes(plan)}
    experts = tuple(name for name in expert_axes(plan) if sizes.get(name, 1) > 1)
    is_divided = plan.sequence_parallel and plan.tp > 1
    return InnerDegrees(
        plan.tp, is_divided, plan.gathered == "again", cp=plan.cp, context=plan.context, expert_axes=experts,
        recomputes_core=recomputes_core(plan),
    )  # fmt: skip


def is_segmented(lowering: Lowering) -> bool:
    """Does the plan exchange anything inside a stage that is to be rows, or recompute a part of it?"""
    return lowering.in_segments and inner_degrees(lowering.plan).has_segments


def segmented(lowering: Lowering) -> Pass:
    """The pass for a plan's stages."""

    def refine(program: Program) -> Program:
        stages = stage_rows(lowering, program)
        made = Refine(stages)(program)
        return made.with_tables(value_bytes=tuple(_value_bytes(lowering, stages, program)))

    return refine


def works_of_segments(lowering: Lowering, program: Program) -> dict[tuple[str, int], Work]:
    """Of every pass of every segment, and of the STEP of what each owns."""
    plan, found = lowering.plan, dict[tuple[str, int], Work]()
    share, stepped = 1.0 / plan.num_chunks, num_stepped_parameters(program, lowering.held)
    number = 0
    for layers in lowering.stages:
        chain = decoder_chain(plan.model, layers, inner_degrees(plan))
        for own in segment_works(plan, layers, chain, share):
            found |= {(name, number): work for name, work in own.items()}
            found["STEP", number] = step_work(plan, layers, stepped[number], share)
            number += 1
    return found


def _value_bytes(lowering: Lowering, stages: Sequence[StageRows], program: Program) -> Iterator[ValueBytes]:
    """Of what segments keep and hand on, where the program has those of stages."""
    plan = lowering.plan
    chains = [each.rows.chain for each in stages]
    kept = [
        size
        for c, layers in zip(chains, lowering.stages, strict=True)
        for size in kept_bytes(plan, layers, c)
    ]
    for each in program.tables.value_bytes:
        if each.kind == SAVED.kind:
            yield each._replace(by_index=tuple(kept))
        elif each.kind == PENDING.kind:
            yield each._replace(by_index=tuple(_spread(each.by_index, stages)))
        else:
            yield each
    known = {name for stage in stages for name in stage.rows.kinds}
    for name, size in between_bytes(plan, inner_degrees(plan)).items():
        for kind in (name, name + GRADIENT, name + AGAIN):
            if kind in known:
                yield ValueBytes(kind, (size,), per_token=True)


def _spread(by_stage: Sequence[float], stages: Sequence[StageRows]) -> Iterator[float]:
    """A stage's bytes evenly over those of its segments that train."""
    for size, stage in zip(by_stage, stages, strict=True):
        trains = stage.rows.trains
        yield from (size * each / max(1, sum(trains)) for each in trains)


def stage_rows(lowering: Lowering, program: Program) -> tuple[StageRows, ...]:
    """Every stage of the program in segments."""
    degrees, t = inner_degrees(lowering.plan), program.tables
    names = [group.name for group in t.groups]
    return tuple(
        _stage_rows(lowering.plan, layers, degrees, ends, [names[g] for g in own])
        for layers, ends, own in zip(
            lowering.stages, stage_ends(t.paths, t.num_stages), t.groups_of_stage, strict=True
        )
    )


def _stage_rows(
    plan: Plan, layers: StageLayers, degrees: InnerDegrees, ends: StageEnds, groups: Sequence[str]
) -> StageRows:
    chain = decoder_chain(plan.model, layers, degrees, ends)
    used = [segment_parameters(plan.model, segment) for segment in chain.segments]
    trains = tuple(bool(trained_parameters(plan.model, segment)) for segment in chain.segments)
    is_tied = TIED in groups
    has_own_experts = any(group.endswith(OF_EXPERTS) for group in groups)

    def uses(group: str, names: Sequence[str]) -> bool:
        if has_own_experts:
            is_own = group.endswith(OF_EXPERTS)
            names = [name for name in names if is_of_experts(name) == is_own]
        return any(name == TABLE if group == TIED else not (is_tied and name == TABLE) for name in names)

    users = tuple(tuple(n for n, names in enumerate(used) if uses(group, names)) for group in groups)
    return StageRows(ChainRows(chain, trains), users)
