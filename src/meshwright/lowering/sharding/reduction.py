"""Gradient reduction and the optimizer step: one collective a parameter group behind its last contribution, then STEP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.axis import owns
from meshwright.ir.core_vocabulary import REDUCE_GRAD, STEP, STEP_REDUCED, SUM_GRAD
from meshwright.ir.judge.operation_check import reduction_axes
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern
from meshwright.lowering.order import first_hops, with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.sharding.canonical import ALGORITHM, CANONICAL, canonical_sizes
from meshwright.specs.error import ScheduleError
from meshwright.stage.group.parameter_group import (
    RING_SUM,
    SCATTERED_SUM,
    TWO_LEVEL_SUM,
    reduction_algorithms,
)

Ints = NDArray[Any]


@dataclass(frozen=True)
class ReduceGradients:
    """Insert REDUCE_GRAD for every group that is replicated, on stream ``reduce``, behind the last B or W of its stage.

    Groups are the buckets: each is one collective over exactly the axes on which it is replicated (for tied parameters
    also the devices of its stages), so later buckets travel while the step of earlier ones runs.

    `is_tied_last`: what is tied across devices comes behind all computes. Where parameters are gathered, or gradients
    scattered, for them on the same stream, a device that waited there for another one's backward could not do what that
    backward waits for.
    """

    algorithms: Mapping[int, str] = field(default_factory=dict)
    sizes: Mapping[int, str] = field(default_factory=dict)
    is_beside: bool = True
    is_tied_last: bool = False
    name = "reduce_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its reductions."""
        program, (effect,) = with_effects(program, REDUCE_GRAD)
        t = program.tables
        exchanges, streams = list(t.exchanges), list(t.streams)
        stream = "reduce" if self.is_beside else "compute"
        if stream not in streams:
            streams.append(stream)
        places, lists, rows = [], [], []
        contributions = LastContributions.of(program)
        for (stage, device, part, _), exchange in self._reduced(program):
            if exchange not in exchanges:
                exchanges.append(exchange)
            # what nothing runs beside comes when all is computed: earlier it would only hold up others
            is_last = not self.is_beside or (self.is_tied_last and exchange.ends is not None)
            last = contributions.last(stage, t.groups_of_stage[stage][part], device)
            places.append(int(program.offsets[device + 1]) if is_last else last + 1)
            lists.append(device)
            rows.append((stage, part, exchanges.index(exchange)))
        if not rows:
            return program
        table = np.array(rows)
        duties = (*t.duties, Duty("REDUCE_GRAD", "group"))
        program = program.with_tables(exchanges=tuple(exchanges), streams=tuple(streams), duties=duties)
        new = Columns.of(
            len(rows), effect=effect, stage=table[:, 0], hop=first_hops(program)[table[:, 0]], part=table[:, 1],
            exchange=table[:, 2], stream=streams.index(stream),
        )  # fmt: skip
        is_across = np.array([exchanges[number].ends is not None for number in table[:, 2]])
        before = _in_one_order(np.array(places), np.array(lists), is_across)
        return program.inserted(before, np.array(lists), new)

    def _reduced(self, program: Program) -> list[tuple[tuple[int, int, int, int], Exchange]]:
        """Of `owned_groups` those that have somebody to reduce with. What devices of several stages reduce together comes
        last: whoever began with it would wait for all that the others reduce before."""
        found = ((own, self._exchange(program, own[3])) for own in owned_groups(program))
        known = [(own, exchange) for own, exchange in found if exchange is not None]
        return sorted(known, key=lambda each: each[1].ends is not None)

    def _exchange(self, program: Program, group: int) -> Exchange | None:
        """The class of a group's reduction, or None where there is nobody to reduce with."""
        axes, devices = reduction_axes(program, group)
        algorithm, size = self.algorithms.get(group, RING_SUM), self.sizes.get(group, "")
        if algorithm == SCATTERED_SUM and len(devices) > 1:
            # a tied table, or a stage on several devices: those that share the state are not all of its copies
            algorithm = TWO_LEVEL_SUM
        if len(devices) > 1:
            return Exchange((program.axes[0].name, *axes), devices, size=size, algorithm=algorithm)
        return Exchange(axes, size=size, algorithm=algorithm) if axes else None


@dataclass(frozen=True)
class OptimizerStep:
    """One STEP a stage at the end of its list, for the groups that the stage owns; it reads reduced gradients where there
    are any (parameters that are tied may be the only ones that are reduced). Of the segments of a stage the last that uses a
    group owns it; the others have none."""

    name = "optimizer_step"

    def __call__(self, program: Program) -> Program:
        """The program with its steps."""
        of_stage = program.tables.devices_of_stage
        places = [
            (stage, at)
            for stage, devices in enumerate(of_stage)
            for at in devices
            if _steps(program, stage, at)
        ]
        reduced = _reduced_groups(program)
        program, effects = with_effects(program, *(_step(program, reduced, *place) for place in places))
        stages, lists = np.array(places).T
        rows = Columns.of(len(places), effect=effects, stage=stages, hop=first_hops(program)[stages])
        due = Duty("STEP", "stage", stages=stepped_stages(program, stages.tolist()))
        program = program.with_tables(duties=(*program.tables.duties, due))
        return program.inserted(program.offsets[lists + 1], lists, rows)


def stepped_stages(program: Program, stages: Iterable[int]) -> tuple[int, ...]:
    """Stages with a STEP as a duty names them: none where all have one, as all do that are no segments."""
    found = tuple(sorted(set(stages)))
    return () if len(found) == program.tables.num_stages else found


def _steps(program: Program, stage: int, device: int) -> bool:
    """Has a stage a STEP on a device? Where nothing is known of groups, every stage."""
    t = program.tables
    return not t.groups or any(owns(program, stage, g, device) for g in t.groups_of_stage[stage])


def _reduced_groups(program: Program) -> frozenset[int]:
    """Groups of which gradients are reduced, or terms of them summed."""
    t, c = program.tables, program.columns
    names = np.array([effect.name in (REDUCE_GRAD.name, SUM_GRAD.name) for effect in t.effects])
    rows = np.flatnonzero(names[c.effect])
    places = zip(c.stage[rows].tolist(), c.part[rows].tolist(), strict=True)
    return frozenset(t.groups_of_stage[stage][part] for stage, part in places)


def _step(program: Program, reduced: Collection[int], stage: int, device: int) -> Effect:
    """The effect of a stage's STEP on a device: the usual one where all of its groups are reduced, or none is, and all are
    its own."""
    t = program.tables
    groups = t.groups_of_stage[stage] if stage < t.num_stages else ()
    own = [place for place, g in enumerate(groups) if owns(program, stage, g, device)]
    behind = [place for place in own if groups[place] in reduced]
    if len(own) == len(groups) and len(behind) in (0, len(groups)):
        return STEP_REDUCED if behind else STEP

    def at(kind: str, places: list[int]) -> tuple[Pattern, ...]:
        return tuple(Pattern(kind, index="place", offset=place) for place in places)

    state = (*at("parameter", own), *at("optimizer_state", own))
    return Effect(
        Kind.COMPUTE, "STEP", (*at("reduced_gradient", behind), *at("weight_gradient", own), *state), state
    )


def owned_groups(program: Program) -> Iterator[tuple[int, int, int, int]]:
    """(stage, device, place of the group in its stage, group) of every copy of every group, by stage on all devices."""
    t = program.tables
    for stage, own in enumerate(t.groups_of_stage):
        for part, g in enumerate(own):
            for device in t.devices_of_stage[stage]:
                if owns(program, stage, g, device):
                    yield stage, device, part, g


def _in_one_order(before: Ints, lists: Ints, is_across: NDArray[np.bool_]) -> Ints:
    """The rows before which reductions stand, those among several devices in the order of the list given: two devices that
    wait for each other's turn would wait for ever."""
    found = before.copy()
    for device in np.unique(lists[is_across]).tolist():
        own = is_across & (lists == device)
        found[own] = np.maximum.accumulate(before[own])
    return found


class LastContributions(NamedTuple):
    """The last row on every device that adds to the gradients of a stage: ``rows[list][stage]``, -1 for none."""

    program: Program
    rows: list[list[int]]

    @staticmethod
    def of(program: Program) -> LastContributions:
        """Found for all devices and stages at once."""
        t, c = program.tables, program.columns
        adds = np.array([any(p.kind == "weight_gradient" for p in effect.writes) for effect in t.effects])
        rows = np.flatnonzero(adds[c.effect])
        num_stages = max(t.num_stages, int(c.stage.max(initial=0)) + 1)
        found = np.full((program.num_lists, num_stages), -1, dtype=np.int64)
        np.maximum.at(found, (program.list_of_row[rows], c.stage[rows]), rows)
        return LastContributions(program, found.tolist())

    def last(self, stage: int, group: int, device: int) -> int:
        """The last row on the device that adds to the gradient of a group of `stage`. Raises ScheduleError."""
        known, own = self.program.tables.groups[group], self.rows[device]
        row = max(own[each] for each in known.stages)
        if row < 0:
            raise ScheduleError(
                f"nothing on stage {stage} adds to the gradient of {known.name}, which is to be reduced; "
                f"give the order a B, or I and W, for every F"
            )
        return row


def reductions(lowering: Lowering) -> Pass:
    """Of every group with copies, scattered where these share its state."""
    plan, held = lowering.plan, lowering.held
    if plan.options_of(CANONICAL) is not None:
        sizes = canonical_sizes(plan, held)
        algorithms = dict.fromkeys(sizes, ALGORITHM)
    else:
        sizes, algorithms = {}, reduction_algorithms(held, plan)
    names = {g: size.name for g, size in sizes.items()}
    reduce = ReduceGradients(algorithms, names, "reduce" in plan.overlap, plan.shared.divides_gradients)
    distinct = tuple(dict.fromkeys(sizes.values()))
    return lambda program: reduce(program.with_tables(sizes=(*program.tables.sizes, *distinct)))
