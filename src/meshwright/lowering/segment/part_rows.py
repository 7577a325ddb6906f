"""Rows of token parts: a chain's rows once for each part of a microbatch, the parts' segments in turns.

Behind computes of a part stand the exchanges of what they made, and then the same computes of the next part: what is sent
for one runs beside what is computed for another. Backward is the transpose, so the last part is the first. A part is the
row's `part`; a step of a relay is numbered on through the parts.

Chunks of sequences read keys and values of all parts up to their own, and add to the gradients of all these. As the last part
goes back first, those of a part are whole once its own attention has gone back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshwright.ir.table import Duty, Effect, Kind, Pattern
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.stage.chain.chain import GRADIENT, Segment

FORWARD = ("F", "R")  # the other computes of a stage run its parts in falling order


def in_turns(
    effect: Effect, rows: Iterable[ChainRow], num_parts: int, segments: Sequence[Segment]
) -> Iterator[ChainRow]:
    """The rows of all parts that a compute becomes, of a stage of these segments."""
    order = range(num_parts) if effect.name in FORWARD else range(num_parts - 1, -1, -1)
    for run in runs(rows):
        for part in order:
            yield from (_of_part(row, part, segments[row.segment]) for row in run)


def runs(rows: Iterable[ChainRow]) -> Iterator[Sequence[ChainRow]]:
    """Computes with the exchanges behind them, up to the next compute; the first ones with those in front, too. Steps of a
    relay are in a run each: what they add to has a slot for each part, which that part's next step displaces."""
    run: list[ChainRow] = []
    for row in rows:
        is_compute = row.effect.kind == Kind.COMPUTE
        is_behind = run and (run[-1].effect.kind != Kind.COMPUTE or row.part > run[-1].part)
        if is_compute and is_behind and _computes(run):
            yield run
            run = []
        run.append(row)
    yield run


def _computes(run: Iterable[ChainRow]) -> bool:
    return any(row.effect.kind == Kind.COMPUTE for row in run)


def _of_part(row: ChainRow, part: int, segment: Segment) -> ChainRow:
    steps = 1 if segment.relay is None else segment.relay.num_steps
    spread = frozenset(kind for name in segment.earlier for kind in (name, name + GRADIENT))
    is_step = any(p.part == "row" for p in _patterns(row.effect))

    def own(pattern: Pattern) -> Pattern:
        # what it makes itself is of its own part
        is_spread = pattern.kind in spread and pattern.offset != 0
        return pattern._replace(part="until") if is_spread else _own(pattern, steps, is_step=is_step)

    effect = row.effect._replace(
        reads=tuple(map(own, row.effect.reads)),
        writes=tuple(map(own, row.effect.writes)),
        moves=None if row.effect.moves is None else own(row.effect.moves),
    )
    return row._replace(effect=effect, part=part * steps + row.part if is_step else part)


def _patterns(effect: Effect) -> tuple[Pattern, ...]:
    return (*effect.reads, *effect.writes, *(() if effect.moves is None else (effect.moves,)))


def _own(pattern: Pattern, steps: int, *, is_step: bool) -> Pattern:
    """The value of the row's own part. Parameters and their gradients are of all parts."""
    if pattern.index != "hop" or pattern.part != "zero":
        return pattern
    if is_step:
        return pattern._replace(part="outer", steps=steps)
    if pattern.part_offset:  # of a relay, behind all its steps
        return pattern._replace(part="first", steps=steps)
    return pattern._replace(part="row")


def of_parts(duty: Duty, num_parts: int) -> Duty:
    """What is due once for each part; parts of a relay do not wait for each other's steps."""
    order = duty.order if num_parts == 1 else 0
    return duty._replace(parts=duty.parts * num_parts, order=order)
