"""Orders of computes become a program: paths, duties and effects; nothing is sent yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, starmap
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.axis import FIRST_AXIS
from meshwright.ir.core_vocabulary import COMPUTES, CORE, STANDARD_KINDS
from meshwright.ir.program import Axis, Columns, Program, Tables, value_kinds_of
from meshwright.ir.table import Duty, Effect, Hop, Kind, Microbatch, ParameterGroup, Work
from meshwright.schedules.order import Orders
from meshwright.specs.error import ScheduleError

Ints = NDArray[np.int64]
# What an order of a schedule may hold.
COMPUTE_OF_NAME = {effect.name: effect for effect in COMPUTES}


def program_of_orders(
    orders: Orders,
    *,
    microbatches: Sequence[Microbatch] | int | None = None,
    num_stages: int | None = None,
    groups: Sequence[ParameterGroup] = (),
    collapsed: Sequence[Axis] = (),
    skips_stages: bool = False,
    pieces: Sequence[int] = (),
    axis: str = FIRST_AXIS,
) -> Program:
    """A program of computes on the axis ``pp``, or `axis` (one list a device), and any collapsed axes behind it.

    Where a stage stands is read from the lists: a placement is data, never a property of a schedule. Microbatches may take
    different ways: a stage that stands on several devices is held by each of them, and each microbatch passes one.
    `microbatches` and `num_stages` are what was asked for; None: what the lists have. The paths are found here, those that
    `microbatches` name are not looked at. `skips_stages`: a microbatch passes those stages that compute it, which may leave
    out some between the first and the last. `pieces`: stages of the program for each stage of the orders, on its device: a
    forward passes them rising, all else falling (empty: one each).

    Raises:
        ScheduleError: no computes, a microbatch that one stage computes on two devices, a gap in the stages, more or fewer
            stages or microbatches than were asked for, or a stage that never computes a microbatch.
    """
    if not any(orders):
        raise ScheduleError("the lists have no computes; return one list a device, such as ['F0', 'B0']")
    placed = _Placed.of(orders)
    if any(count != 1 for count in pieces):
        placed = placed.in_pieces(pieces)
    given = _microbatches(placed, microbatches)
    ways = _ways(placed, num_stages, len(given), skips_stages)
    paths, path_of = _paths(ways)
    stages = placed.stage
    hops = np.cumsum(ways >= 0, axis=1)[placed.microbatch, stages] - 1 if skips_stages else stages
    effects = tuple(map(COMPUTE_OF_NAME.__getitem__, placed.names))
    tables = Tables(
        effects=effects,
        value_kinds=value_kinds_of(CORE, effects, STANDARD_KINDS),
        microbatches=tuple(one._replace(path=path) for one, path in zip(given, path_of, strict=True)),
        paths=paths,
        groups=tuple(groups),
        duties=tuple(map(Duty, placed.names)),
    )
    columns = Columns.of(
        len(stages), effect=placed.name, stage=stages, hop=hops, microbatch=placed.microbatch
    )
    return Program((Axis(axis, len(orders)), *collapsed), tables, columns, placed.offsets)


class _Placed(NamedTuple):
    """The computes of all devices one behind the other: columns, and where each device's begin; `name` counts in `names`."""

    names: tuple[str, ...]
    name: Ints
    stage: Ints
    microbatch: Ints
    offsets: Ints

    @staticmethod
    def of(orders: Orders) -> _Placed:
        """Column by column: a job has a hundred thousand computes and more. Raises ScheduleError for other names."""
        flat = list(chain.from_iterable(orders))
        written = list(map(itemgetter(0), flat))
        names = sorted(set(written))
        others = [name for name in names if name not in COMPUTE_OF_NAME]
        if others:
            raise ScheduleError(
                f"the order has {', '.join(others)}; it holds computes of stages (F, B, I, W), passes place all else"
            )
        number = {name: place for place, name in enumerate(names)}
        try:
            stages, numbers = (np.array(list(map(itemgetter(k), flat)), dtype=np.int64) for k in (1, 2))
        except OverflowError:
            raise ScheduleError(
                "a stage or microbatch has more than 18 digits; number both from 0 without gaps"
            ) from None
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in orders])]).astype(np.int64)
        return _Placed(
            tuple(names), np.array(list(map(number.__getitem__, written))), stages, numbers, offsets
        )

    def in_pieces(self, pieces: Sequence[int]) -> _Placed:
        """Every compute of a stage as computes of its pieces: forward rising, all else falling. Raises ScheduleError where
        the lists have other stages."""
        _num_stages(self, len(pieces))
        counts = np.array(pieces)[self.stage]
        row = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(counts)
        rising = np.arange(len(row)) - np.repeat(ends - counts, counts)
        is_forward = np.array([name == "F" for name in self.names])[self.name]
        place = np.where(is_forward[row], rising, counts[row] - 1 - rising)
        first = np.cumsum([0, *pieces])[self.stage]
        return _Placed(
            self.names, self.name[row], first[row] + place, self.microbatch[row],
            np.concatenate([[0], ends])[self.offsets],
        )  # fmt: skip

    @property
    def device(self) -> Ints:
        """Device of every compute."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def where(self, place: int) -> str:
        """Words for one compute: its device, its position there, and itself."""
        device = int(np.searchsorted(self.offsets, place, side="right")) - 1
        position, name = place - int(self.offsets[device]), self.names[self.name[place]]
        return f"device {device}, position {position}: {self.stage[place]}{name}{self.microbatch[place]}"


def _microbatches(placed: _Placed, asked: Sequence[Microbatch] | int | None) -> Sequence[Microbatch]:
    """The microbatches asked for, or as many as the lists have, with equal weights; the lists may have no others."""
    last = int(placed.microbatch.max())
    if asked is None:
        if last >= len(placed.microbatch):
            raise ScheduleError(f"microbatch {last} is computed, but not all before it; number them from 0")
        asked = last + 1
    if isinstance(asked, int):
        asked = [Microbatch(1, 1.0 / asked)] * asked
    if last >= len(asked):
        first = int(np.flatnonzero(placed.microbatch >= len(asked))[0])
        raise ScheduleError(
            f"{placed.where(first)}, but there are {len(asked)} microbatches, numbered from 0"
        )
    return asked


def _paths(ways: Ints) -> tuple[tuple[tuple[Hop, ...], ...], list[int]]:
    """The ways that microbatches take, stage after stage, each where the lists have it; and the way of every microbatch."""
    numbers: dict[tuple[int, ...], int] = {}
    path_of = [numbers.setdefault(tuple(way), len(numbers)) for way in ways.tolist()]
    paths = (tuple(hop for hop in starmap(Hop, enumerate(way)) if hop.device >= 0) for way in numbers)
    return tuple(paths), path_of


def _num_stages(placed: _Placed, asked: int | None) -> int:
    """How many stages the lists have: numbered without gaps, and as many as were asked for. Raises ScheduleError."""
    known = np.unique(placed.stage)
    if len(known) != known[-1] + 1:
        missing = sorted({*range(len(known))} - {*known.tolist()})
        raise ScheduleError(
            f"stages {missing} are on no device, but stage {known[-1]} is; number stages from 0 without gaps"
        )
    if asked is not None and len(known) != asked:
        raise ScheduleError(
            f"the order has {len(known)} stages, {asked} were asked for; a schedule with several stages a device "
            f"takes their number as its third argument, num_chunks"
        )
    return len(known)


def _check_enough(placed: _Placed, num_stages: int, num_microbatches: int) -> None:
    """There are as many computes as a table of all stages and microbatches has places: one that was asked for a million
    microbatches need not be made. Raises ScheduleError for the first that is missing.
    """
    if num_stages * num_microbatches > len(placed.stage):
        there = np.unique(placed.microbatch * num_stages + placed.stage)
        gaps = np.flatnonzero(there != np.arange(len(there)))
        raise _never(int(gaps[0]) if len(gaps) else len(there), num_stages, num_microbatches)


def _ways(placed: _Placed, asked: int | None, num_microbatches: int, skips_stages: bool) -> Ints:
    """The device of every microbatch and stage, [microbatches, stages]; -1 where stages are left out, if that is allowed.

    Raises ScheduleError where there are two devices, or none for a stage that no microbatch leaves out.
    """
    num_stages = _num_stages(placed, asked)
    if not skips_stages:
        _check_enough(placed, num_stages, num_microbatches)
    device, cell = placed.device, placed.microbatch * num_stages + placed.stage
    found = np.full(num_stages * num_microbatches, -1, dtype=np.int64)
    found[cell] = device
    elsewhere = np.flatnonzero(found[cell] != device)
    if len(elsewhere):
        first = int(elsewhere[0])
        raise ScheduleError(
            f"{placed.where(first)}, but stage {placed.stage[first]} computes microbatch {placed.microbatch[first]} on "
            f"device {found[cell[first]]}, too; a microbatch passes a stage on one device"
        )
    ways = found.reshape(-1, num_stages)
    wanted = ways[:, [0, -1]] if skips_stages else ways
    if wanted.min() < 0:
        microbatch, place = divmod(int(np.argmin(wanted)), wanted.shape[1])
        stage = (0, num_stages - 1)[place] if skips_stages else place
        raise _never(microbatch * num_stages + stage, num_stages, num_microbatches)
    return ways


def by_hop(program: Program, by_stage: Sequence[float]) -> tuple[float, ...]:
    """Sizes of stages as sizes of hops: of each hop the largest of any path; the same where no path leaves a stage out."""
    found = [0.0] * max(len(path) for path in program.tables.paths)
    for path in program.tables.paths:
        for place, hop in enumerate(path):
            found[place] = max(found[place], by_stage[hop.stage])
    return tuple(found)


def first_hops(program: Program) -> Ints:
    """The first hop at which any path visits each stage."""
    result = np.zeros(program.tables.num_stages, dtype=np.int64)
    for path in reversed(program.tables.paths):
        for hop in reversed(range(len(path))):
            result[path[hop].stage] = hop
    return result


def due_with_step(program: Program, name: str) -> Duty:
    """The duty of what stands beside every STEP: once for each stage that has one."""
    stages = (duty.stages for duty in program.tables.duties if duty.name == "STEP")
    return Duty(name, "stage", stages=next(stages, ()))


def _never(cell: int, num_stages: int, num_microbatches: int) -> ScheduleError:
    microbatch, stage = divmod(cell, num_stages)
    return ScheduleError(
        f"stage {stage} never computes microbatch {microbatch} of {num_microbatches}; every stage computes each of them"
    )


def with_effects(program: Program, *effects: Effect) -> tuple[Program, list[int]]:
    """The program with these effects (and the value kinds they touch) in its tables, and their places."""
    table = list(program.tables.effects)
    place_of = {effect: place for place, effect in reversed(list(enumerate(table)))}
    for effect in effects:
        if effect not in place_of:
            place_of[effect] = len(table)
            table.append(effect)
    kinds = value_kinds_of(program.vocabulary, table, program.tables.value_kinds)
    places = [place_of[effect] for effect in effects]
    return program.with_tables(effects=tuple(table), value_kinds=kinds), places


def with_works(
    program: Program,
    works: Mapping[tuple[str, int], Work],
    of_parts: Mapping[tuple[str, int, int], Work] | None = None,
) -> Program:
    """The program with a work on every compute, by (name, stage); names that are not given keep none. `of_parts`: of rows
    of a part, by (name, stage, part), instead."""
    table: dict[Work, int] = {}
    known: dict[int, int] = {}  # by identity, as stages that are alike share their works: hashing one is long

    def number(work: Work) -> int:
        if id(work) not in known:
            known[id(work)] = table.setdefault(work, len(table))
        return known[id(work)]

    num_stages = max(program.tables.num_stages, int(program.columns.stage.max(initial=0)) + 1)
    num_parts = 1 + max((part for _, _, part in of_parts or ()), default=0)
    place = np.full((len(program.tables.effects), num_stages, num_parts), -1, dtype=np.int64)
    numbers: dict[str, list[int]] = {}
    for e, effect in enumerate(program.tables.effects):
        numbers.setdefault(effect.name, []).append(e)
    for name, effects in numbers.items():
        for stage in range(num_stages):
            work = works.get((name, stage))
            if work is not None:
                place[effects, stage] = number(work)
    for (name, stage, part), work in (of_parts or {}).items():
        place[numbers.get(name, []), stage, part] = number(work)
    c = program.columns
    chosen = place[c.effect, c.stage, np.minimum(c.part, num_parts - 1)] if len(program) else c.work
    return program.with_tables(works=tuple(table)).with_columns(work=chosen)


def with_works_of_kinds(
    program: Program, kinds: Sequence[int], works: Mapping[tuple[str, int, int], Work]
) -> Program:
    """The program with works that differ by the kind of a microbatch (`kinds`: of every one), by (name, stage, kind); rows of
    names that are not given keep theirs."""
    table = {work: number for number, work in enumerate(program.tables.works)}
    known: dict[int, int] = {}  # by identity, as in `with_works`
    names = {
        name: number for number, name in enumerate(dict.fromkeys(e.name for e in program.tables.effects))
    }
    place = np.full((len(names), program.tables.num_stages, max(kinds) + 1), -1, dtype=np.int32)
    for (name, stage, kind), work in works.items():
        if name in names:
            if id(work) not in known:
                known[id(work)] = table.setdefault(work, len(table))
            place[names[name], stage, kind] = known[id(work)]
    c = program.columns
    named = np.array([names[effect.name] for effect in program.tables.effects])[c.effect]
    chosen = place[named, c.stage, np.array(kinds)[c.microbatch]]
    return program.with_tables(works=tuple(table)).with_columns(work=np.where(chosen < 0, c.work, chosen))


def with_shares(program: Program, num_chunks: int) -> Program:
    """A work on every compute that costs its share of a full stage."""
    names = {effect.name for effect in program.tables.effects if effect.kind == Kind.COMPUTE}
    stages = range(program.tables.num_stages)
    return with_works(program, {(n, s): Work(n, share=1 / num_chunks) for n in names for s in stages})
