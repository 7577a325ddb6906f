"""Which of its stage's groups a compute reads or adds to in another form: the same compute, told apart place by place."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cache
from typing import Literal

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Pattern
from meshwright.lowering.order import with_effects

Side = Literal["reads", "writes"]


def with_kind_at(
    program: Program,
    groups: Container[int],
    is_meant: Callable[[Effect], bool],
    side: Side,
    kind: str,
    other: str,
) -> Program:
    """Computes that are meant have values of kind `other` for `kind`, where these are of `groups`, stage by stage."""
    t, c = program.tables, program.columns
    num_stages = max(t.num_stages, int(c.stage.max(initial=0)) + 1)
    chosen, table = np.tile(np.arange(len(t.effects)), (num_stages, 1)), list(t.effects)
    place_of = {effect: place for place, effect in reversed(list(enumerate(table)))}
    meant = [e for e, effect in enumerate(t.effects) if is_meant(effect)]

    @cache
    def at_places(e: int, num_groups: int, places: tuple[int, ...]) -> int:
        effect = t.effects[e]
        patterns = _at_places(getattr(effect, side), num_groups, places, kind, other)
        made = effect._replace(reads=patterns) if side == "reads" else effect._replace(writes=patterns)
        if made not in place_of:
            place_of[made] = len(table)
            table.append(made)
        return place_of[made]

    for stage, own in enumerate(t.groups_of_stage):
        places = tuple(place for place, g in enumerate(own) if g in groups)
        for e in meant if places else ():
            chosen[stage, e] = at_places(e, len(own), places)
    program, _ = with_effects(program, *table)
    return program.with_columns(effect=chosen[c.stage, c.effect])


def _at_places(
    patterns: tuple[Pattern, ...], num_groups: int, places: tuple[int, ...], kind: str, other: str
) -> tuple[Pattern, ...]:
    """These patterns with `other` for `kind` at some places of a stage's groups; at all of them it stays one pattern."""
    found: list[Pattern] = []
    for pattern in patterns:
        if pattern.kind != kind:
            found.append(pattern)
        elif len(places) == num_groups:
            found.append(pattern._replace(kind=other))
        else:
            found += (
                Pattern(other if place in places else kind, index="place", offset=place)
                for place in range(num_groups)
            )
    return tuple(found)
