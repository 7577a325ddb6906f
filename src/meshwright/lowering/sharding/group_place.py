"""Which of its stage's groups a compute reads or adds to in another form: the same compute, told apart place by place."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

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
    chosen, table = c.effect.copy(), list(t.effects)
    for stage, own in enumerate(t.groups_of_stage):
        places = tuple(place for place, g in enumerate(own) if g in groups)
        for e, effect in enumerate(t.effects if places else ()):
            if is_meant(effect):
                patterns = _at_places(getattr(effect, side), len(own), places, kind, other)
                made = (
                    effect._replace(reads=patterns) if side == "reads" else effect._replace(writes=patterns)
                )
                if made not in table:
                    table.append(made)
                chosen[(c.effect == e) & (c.stage == stage)] = table.index(made)
    program, _ = with_effects(program, *table)
    return program.with_columns(effect=chosen)


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
