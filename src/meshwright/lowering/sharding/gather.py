"""Sharded parameters: gathered before the computes that read them (ZeRO-3), or after the step that wrote them (ZeRO-1, 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.ir.core_vocabulary import GATHER_PARAM, GATHERED, GATHERED_PARAMETER, UNSHARD
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Exchange
from meshwright.lowering.order import first_hops, with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.sharding.group_place import with_kind_at
from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.parameter_group import gather_exchanges, stepped_sizes, unshard_exchanges

# Groups of a stage that are gathered while another one computes: FSDP's limit of gathers in flight
# (torch.distributed.fsdp, limit_all_gathers).
PREFETCH = 2
COMPUTES = ("F", "R", "B", "I", "LOOKUP", "S", "T")  # they read parameters; W does not
STREAM = "reduce"  # gathers and reductions of the same devices are one communicator, hence one order


@dataclass(frozen=True)
class Unshard:
    """Gather what a stage's computes read, once for computes of one stage that follow each other, `prefetch` stages
    ahead; what was gathered for the stage before that is given back.

    `exchanges`: parameter group (its number) -> how it is gathered; groups that are whole are not in it.
    `keeps_after_forward`: what was gathered for a stage's first computes stays for all of the iteration; its gathers are
    then one a stage, and so is its memory (FSDP's reshard_after_forward=False).
    """

    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    prefetch: int = PREFETCH
    keeps_after_forward: bool = False
    name = "unshard"

    def __call__(self, program: Program) -> Program:
        """The program with its UNSHARDs."""
        if not self.exchanges:
            return program
        program = self._reading_gathered(program)
        t, c = program.tables, program.columns
        most = max(sum(g in self.exchanges for g in groups) for groups in t.groups_of_stage)
        slots = 0 if self.keeps_after_forward else most * (self.prefetch + 1)
        ring = GATHERED_PARAMETER._replace(ring=slots)
        kinds = tuple(ring if kind.name == ring.name else kind for kind in t.value_kinds)
        program, (effect,) = with_effects(program.with_tables(value_kinds=kinds), UNSHARD)
        program, numbers, stream = _with_exchanges(program, self.exchanges, STREAM)
        reads = np.array([any(p.kind == GATHERED.kind for p in e.reads) for e in program.tables.effects])
        before, lists, rows = [], [], []
        for device in range(program.num_lists):
            runs = _runs(program, reads[c.effect], device)
            if self.keeps_after_forward:
                runs = list({stage: (first, stage) for first, stage in reversed(runs)}.values())[::-1]
            ahead, before_it = 0, dict[int, int]()
            for place, (first, stage) in enumerate(runs):
                # its slot is free when the run `prefetch + 1` runs before it has ended: it stands behind that one; and behind
                # the last run of the same stage, which would read what is gathered for this one
                ahead = max(ahead, place - self.prefetch, before_it.get(stage, -1) + 1)
                before_it[stage] = place
                at = runs[ahead][0] if ahead > 0 else int(program.offsets[device])
                for part, g in enumerate(t.groups_of_stage[stage]):
                    if g in self.exchanges:
                        before.append(min(at, first))
                        lists.append(device)
                        rows.append((stage, int(c.hop[first]), part, numbers[g]))
        return _with_gathers(program, effect, stream, before, lists, rows)

    def _reading_gathered(self, program: Program) -> Program:
        """Computes read gathered parameters instead of the shards, stage by stage, where these are gathered."""
        return with_kind_at(
            program,
            self.exchanges,
            lambda effect: effect.name in COMPUTES,
            "reads",
            "parameter",
            GATHERED.kind,
        )


def _runs(program: Program, reads: np.ndarray, device: int) -> list[tuple[int, int]]:
    """(first row, stage) of computes on one device that read what is gathered and follow each other on the same stage, or on
    segments with the same groups."""
    c = program.columns
    span = np.arange(program.offsets[device], program.offsets[device + 1])
    rows = span[reads[span]]
    known: dict[tuple[int, ...], int] = {}
    own = np.array([known.setdefault(groups, s) for s, groups in enumerate(program.tables.groups_of_stage)])
    stages = own[c.stage[rows]]
    first = np.flatnonzero(np.concatenate([[True], stages[1:] != stages[:-1]])) if len(rows) else rows
    return [(int(rows[i]), int(stages[i])) for i in first]


@dataclass(frozen=True)
class GatherParameters:
    """Behind the steps of a device, gather every group whose update was sharded; the next iteration reads it whole.

    `is_beside`: on the stream of reductions, so that later groups travel while the next iteration runs.
    """

    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    is_beside: bool = False
    name = "gather_parameters"

    def __call__(self, program: Program) -> Program:
        """The program with its GATHER_PARAMs, in the order in which the forward reads."""
        t = program.tables
        if not self.exchanges:
            return program
        program, (effect,) = with_effects(program, GATHER_PARAM)
        program, numbers, stream = _with_exchanges(
            program, self.exchanges, STREAM if self.is_beside else "compute"
        )
        before, lists, rows = [], [], []
        hop_of_stage = first_hops(program)
        for device, stage in ((d, s) for s, devices in enumerate(t.devices_of_stage) for d in devices):
            for part, g in enumerate(t.groups_of_stage[stage]):
                # a group that several stages here use is gathered in the turn of the first, which reads it soonest
                first = min(s for s in t.groups[g].stages if device in t.devices_of_stage[s])
                if g in self.exchanges and stage == first:
                    before.append(int(program.offsets[device + 1]))
                    lists.append(device)
                    rows.append((stage, int(hop_of_stage[stage]), part, numbers[g]))
        return _with_gathers(program, effect, stream, before, lists, rows)


def _with_gathers(
    program: Program,
    effect: int,
    stream: int,
    before: Sequence[int],
    lists: Sequence[int],
    rows: Sequence[tuple[int, int, int, int]],
) -> Program:
    """The program with a gather before each of these rows of its lists; of each its stage, hop, part and exchange."""
    stage, hop, part, exchange = np.array(rows).T
    new = Columns.of(
        len(rows), effect=effect, stage=stage, hop=hop, part=part, exchange=exchange, stream=stream
    )
    return program.inserted(np.array(before), np.array(lists), new)


def _with_exchanges(
    program: Program, exchanges: Mapping[int, Exchange], name: str
) -> tuple[Program, dict[int, int], int]:
    """The program with these classes and a stream of this name in its tables; the class of every group, the stream."""
    table, streams = list(program.tables.exchanges), list(program.tables.streams)
    for exchange in exchanges.values():
        if exchange not in table:
            table.append(exchange)
    if name not in streams:
        streams.append(name)
    numbers = {g: table.index(exchange) for g, exchange in exchanges.items()}
    program = program.with_tables(exchanges=tuple(table), streams=tuple(streams))
    return program, numbers, streams.index(name)


@dataclass(frozen=True)
class Unsharding:
    """How values that are divided are gathered for the computes that read them."""

    prefetch: int = option(PREFETCH, least=0, help="pieces of a stage that are gathered ahead")
    keeps_after_forward: bool = option(False, help="what was gathered for a stage stays for the iteration")
    name = Unshard.name
    after = ("gather_parameters",)
    before = ()

    def check(self, plan: Plan) -> None:
        """Raise PlanError where values are whole."""
        if not plan.shared.divides_values:
            raise PlanError(
                f"pass {self.name} says how parameters are gathered, and sharding={plan.sharding} keeps them whole",
                allowed="sharding zero3",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """Of the groups whose values are divided."""
        if not lowering.plan.shared.divides_values:
            return None
        return Unshard(unshard_exchanges(lowering.held), self.prefetch, self.keeps_after_forward)


def gathered(lowering: Lowering) -> Pass:
    """Gathers of what was stepped, where values are shared by fewer devices than state."""
    plan, held = lowering.plan, lowering.held
    sizes, exchanges = stepped_sizes(plan, held), gather_exchanges(held)
    named = {g: each._replace(size=sizes[g].name) if g in sizes else each for g, each in exchanges.items()}
    gather = GatherParameters(named, "gather" in plan.overlap)
    return lambda program: gather(program.with_tables(sizes=(*program.tables.sizes, *sizes.values())))
