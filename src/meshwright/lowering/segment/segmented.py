"""Which stages of a plan are chains of segments, and which of these use which parameter group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.ir.core_vocabulary import INPUT, OUTPUT_GRADIENT, PENDING, SAVED
from meshwright.ir.program import Program
from meshwright.ir.table import ValueBytes, Work
from meshwright.lowering.order import with_works_of_kinds
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.segment.beside_plan import asked_pairs
from meshwright.lowering.segment.chain_rows import ChainRows
from meshwright.lowering.segment.refine import Refine, StageRows
from meshwright.lowering.segment.relay_rows import BEHIND_STEP, OF_STEP
from meshwright.lowering.sequence.group_offload import host_bytes, host_works, offload_of
from meshwright.lowering.sequence.group_rows import GroupHops
from meshwright.specs.error import PlanError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import CONNECT_STAGES, Plan
from meshwright.specs.sequence.packed_part import PackedPart
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.stage.chain.chain import GRADIENT, Chain
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import (
    InnerDegrees,
    StageEnds,
    of_groups,
    recomputed_in_segments,
    stage_ends,
)
from meshwright.stage.chain.packed_work import packed_works
from meshwright.stage.chain.parameters import (
    TABLE,
    is_of_experts,
    segment_parameters,
    trained_parameters,
)
from meshwright.stage.chain.segment_work import between_bytes, kept_bytes, segment_works, share_of_part
from meshwright.stage.group.parameter_group import OF_EXPERTS, TIED, num_stepped_parameters
from meshwright.stage.mesh import mesh_axes
from meshwright.stage.relay.relay_work import FIRST
from meshwright.stage.relay.rounds import AGAIN
from meshwright.stage.stage_pass import step_work

OfSegments = dict[tuple[str, int], Work]  # by name and stage
OfParts = dict[tuple[str, int, int], Work]  # by name, stage and part
# Numbers of every expert, of a part as of a whole microbatch.
COUNTED = ("counts", "arrived", "all_counts", "near_counts", "far_counts")


def inner_degrees(plan: Plan) -> InnerDegrees:
    """How many devices share a microbatch inside a stage of the plan."""
    is_divided = plan.sequence_parallel and plan.tp > 1
    return InnerDegrees(
        plan.tp, is_divided, plan.gathered == "again", cp=plan.cp, context=plan.context,
        ulysses=plan.ulysses, mesh=mesh_axes(plan), ep_near=plan.ep_near, dispatch=plan.dispatch,
        recompute=recomputed_in_segments(plan), shared_choices=plan.shared_choices,
        num_parts=len(plan.parts), has_chunks=plan.has_chunks,
    )  # fmt: skip


def degrees_of(lowering: Lowering) -> InnerDegrees:
    """How many devices share a microbatch inside a stage of the program; of groups of ranks as many as in the largest."""
    found = inner_degrees(lowering.plan)
    return found if lowering.groups is None else of_groups(found, lowering.groups.most_degree)


def is_segmented(lowering: Lowering) -> bool:
    """Does the plan exchange anything inside a stage that is to be rows, or recompute a part of it? Parts of microbatches run
    beside each other as rows only. Edges beside the path are of whole stages, whose exchanges stay within their computes."""
    degrees = degrees_of(lowering)
    is_asked = lowering.in_segments and not lowering.plan.connects_stages
    return (is_asked or degrees.num_parts > 1) and degrees.has_segments


def check_parts(plan: Plan) -> None:
    """Raise PlanError where microbatches are cut into parts, and a stage is no chain that every part goes through alone."""
    beside = {
        f"vocabulary = {plan.vocabulary}": plan.vocabulary != "ends" and plan.pp > 1,
        CONNECT_STAGES: plan.connects_stages,
        f"recompute = {plan.recompute}": plan.recompute not in ("none", "full", recomputed_in_segments(plan)),
        "recompute_blocks": plan.recompute_blocks not in ((), plan.layers_per_stage),
    }
    if plan.has_chunks:
        beside |= {f"parts_of = sequence and cp = {plan.cp}": plan.cp > 1}
        beside |= {f"parts_of = sequence and attention = {plan.attention}": plan.attention != "flash"}
    for name in (name for name, is_there in beside.items() if is_there and plan.has_parts):
        raise PlanError(
            f"token_parts is {plan.token_parts!r} with {name}",
            allowed="stages that are chains from input to output, recompute none or of all blocks; of sequences "
            "with cp 1 and flash attention",
            next="leave one of the two out",
        )


def segmented(lowering: Lowering) -> Pass:
    """The pass for a plan's stages. Raises PlanError where they cannot be run in parts."""
    check_parts(lowering.plan)
    groups, pairs = lowering.groups, asked_pairs(lowering.plan, lowering.schedule)
    pieces = tuple(stage for stage, count in enumerate(lowering.counts) for _ in range(count))

    def refine(program: Program) -> Program:
        stages = stage_rows(lowering, program)
        if groups is None:
            made = Refine(stages, pairs=pairs, pieces=pieces)(program)
        else:
            steps = tuple(each.part.degree for each in groups.microbatches)
            made = GroupHops(groups)(Refine(stages, steps)(program))
            chain = stages[0].rows.chain
            made = offload_of(groups, chain, kept_bytes(lowering.plan, lowering.stages[0], chain))(made)
        sizes = tuple(_value_bytes(lowering, stages, program))
        return made.with_tables(value_bytes=sizes if groups is None else (*sizes, *host_bytes(sizes)))

    return refine


def works_of_segments(lowering: Lowering, program: Program) -> tuple[OfSegments, OfParts]:
    """Of every pass of every segment, and of the STEP of what each owns; and these passes by the part of a row, none where
    microbatches are not cut and there are no relays."""
    plan, found, of_parts = lowering.plan, OfSegments(), OfParts()
    share, stepped = 1.0 / plan.num_chunks, num_stepped_parameters(program, lowering.held)
    is_in_parts = plan.has_parts or plan.context_parallel.travels
    first = 0
    for layers in lowering.stages:
        chain = decoder_chain(plan.model, layers, degrees_of(lowering))
        for part in range(len(plan.parts)):
            works = list(segment_works(plan, chain, share, part))
            if part == 0:
                found |= {(name, n): work for n, own in enumerate(works, first) for name, work in own.items()}
            if is_in_parts:
                of_parts |= _works_of_part(chain, works, first, part)
        for number in range(first, first + len(chain.segments)):
            found["STEP", number] = step_work(plan, stepped[number], share)
        first += len(chain.segments)
    return found, of_parts


def works_of_groups(lowering: Lowering, program: Program, groups: GroupedBatch) -> Program:
    """With the works of every microbatch's own sequences; those of one group are the same on all of its ranks."""
    plan, numbers = lowering.plan, dict[PackedPart, int]()
    kinds = [numbers.setdefault(each.part.of_rank(0), len(numbers)) for each in groups.microbatches]
    (layers,) = lowering.stages
    chain = decoder_chain(plan.model, layers, degrees_of(lowering))
    names = {effect.name for effect in program.tables.effects}
    found = {
        (name, number, kind): work
        for part, kind in numbers.items()
        for number, own in enumerate(packed_works(plan, chain.with_steps(part.degree), part, names))
        for name, work in own.items()
    }
    kept = kept_bytes(plan, layers, chain)
    if any(group.offload for group in groups.groups):
        for part, kind in numbers.items():
            moved = host_works(kept, part.num_tokens, plan.dtype)
            found |= {(name, number, kind): work for (name, number), work in moved.items()}
    return with_works_of_kinds(program, kinds, found)


def _works_of_part(
    chain: Chain, works: Sequence[dict[str, Work]], first: int, part: int
) -> Iterator[tuple[tuple[str, int, int], Work]]:
    """Of the rows of a part of microbatches, in a relay one a step; the first step of all may have a work of its own."""
    for number, (segment, own) in enumerate(zip(chain.segments, works, strict=True), first):
        relay = segment.relay
        steps = 1 if relay is None else relay.num_steps
        stepped = () if relay is None else {name for each in relay.rounds.all for name in each.stepped}
        for name in (name for name in own if not name.endswith(FIRST)):
            parts = range(part * steps, (part + 1) * steps) if name in stepped else (part,)
            yield from (((name, number, own_part), own[name]) for own_part in parts)
            yield (name, number, parts[0]), own.get(name + FIRST, own[name])


def _value_bytes(lowering: Lowering, stages: Sequence[StageRows], program: Program) -> Iterator[ValueBytes]:
    """Of what segments keep and hand on, where the program has those of stages."""
    plan, halves = lowering.plan, lowering.plan.model.num_halves
    chains = [each.rows.chain for each in stages]
    kept = [
        size
        for c, layers in zip(chains, lowering.stages, strict=True)
        for size in kept_bytes(plan, layers, c)
    ]
    shares = _shares(plan)
    for each in program.tables.value_bytes:
        own = each._replace(by_part=shares if each.per_token else ())
        if each.kind == SAVED.kind:
            yield own._replace(by_index=tuple(size / halves for size in kept))
        elif each.kind in (INPUT.kind, OUTPUT_GRADIENT.kind) and len(each.by_index) > 1:
            sizes = zip(each.by_index, stages, strict=True)
            yield own._replace(
                by_index=tuple(size for size, stage in sizes for _ in range(stage.num_segments))
            )
        elif each.kind == PENDING.kind:
            yield own._replace(by_index=tuple(_spread(each.by_index, stages)))
        else:
            yield own
    known = {name for stage in stages for name in stage.rows.kinds}
    for name, size in between_bytes(plan, degrees_of(lowering)).items():
        of_parts = () if name in COUNTED else _of_steps(name, shares, plan.context_parallel.ring_degree)
        for kind in (name, name + GRADIENT, name + AGAIN):
            if kind in known:
                yield ValueBytes(kind, (size / halves,), per_token=True, by_part=of_parts)


def _shares(plan: Plan) -> tuple[float, ...]:
    """What every part has of a microbatch; empty where it is not cut."""
    return tuple(share_of_part(plan, each) for each in plan.parts) if plan.has_parts else ()


def _of_steps(name: str, shares: tuple[float, ...], num_steps: int) -> tuple[float, ...]:
    """Shares of the parts of a value: of a relay one a step, numbered by the step behind where steps leave it to that."""
    if name not in OF_STEP | BEHIND_STEP or not shares:
        return shares
    by_step = tuple(share for share in shares for _ in range(num_steps))
    return by_step if name in OF_STEP else (shares[0], *by_step)


def _spread(by_stage: Sequence[float], stages: Sequence[StageRows]) -> Iterator[float]:
    """A stage's bytes evenly over those of its segments that train."""
    for size, stage in zip(by_stage, stages, strict=True):
        trains = stage.rows.trains
        yield from (size * each / max(1, sum(trains)) for each in trains)


def stage_rows(lowering: Lowering, program: Program) -> tuple[StageRows, ...]:
    """Every stage of the program in segments."""
    degrees, t = degrees_of(lowering), program.tables
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
    if not any(trains):  # its gradients are due all the same: nothing, of the first segment with parameters
        due = next((number for number, names in enumerate(used) if names), 0)
        trains = tuple(number == due for number in range(len(used)))
    is_tied = TIED in groups
    has_own_experts = any(group.endswith(OF_EXPERTS) for group in groups)

    def uses(group: str, names: Sequence[str]) -> bool:
        if has_own_experts:
            is_own = group.endswith(OF_EXPERTS)
            names = [name for name in names if is_of_experts(name) == is_own]
        return any(name == TABLE if group == TIED else not (is_tied and name == TABLE) for name in names)

    users = tuple(tuple(n for n, names in enumerate(used) if uses(group, names)) for group in groups)
    return StageRows(ChainRows(chain, trains, degrees.num_parts), users)
