"""Gradients of which each device of a tensor-parallel group has a term, summed behind the last contribution or reduction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwright.ir.core_vocabulary import REDUCE_GRAD, SUM_GRAD, SUM_REDUCED
from meshwright.ir.judge.operation_check import sum_axes
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Exchange
from meshwright.lowering.order import first_hops, with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.sharding.reduction import LastContributions, owned_groups
from meshwright.stage.group.parameter_group import partial_sizes

STREAM = "reduce"


@dataclass(frozen=True)
class SumPartial:
    """Insert SUM_GRAD for every group with partial gradients, behind its REDUCE_GRAD, or else behind the last contribution
    to it; the step reads what it leaves.

    ``sizes``: name of the run-time size by group, as the sum is of a part of it. ``is_beside``: on the stream of reductions,
    else behind all computes.
    """

    sizes: Mapping[int, str] = field(default_factory=dict)
    is_beside: bool = True
    name = "sum_partial"

    def __call__(self, program: Program) -> Program:
        """The program with its sums."""
        owned = [own for own in owned_groups(program) if sum_axes(program, own[3])]
        if not owned:
            return program
        program, numbers = with_effects(program, SUM_GRAD, SUM_REDUCED)
        t, stream = program.tables, STREAM if self.is_beside else "compute"
        streams = tuple(dict.fromkeys((*t.streams, stream)))
        wanted = [
            Exchange(sum_axes(program, g), size=self.sizes.get(g, ""), algorithm="all_reduce")
            for *_, g in owned
        ]
        exchanges = tuple(dict.fromkeys((*t.exchanges, *wanted)))
        reduced, contributions = _reductions(program), LastContributions.of(program)
        at = [reduced.get(own[:3], -1) for own in owned]
        stage, device, part, _ = np.array(owned).T
        before = [
            row + 1 if row >= 0 else self._behind_all(contributions, own)
            for row, own in zip(at, owned, strict=True)
        ]
        new = Columns.of(
            len(owned), effect=[numbers[row >= 0] for row in at], stage=stage, hop=first_hops(program)[stage], part=part,
            exchange=[exchanges.index(one) for one in wanted], stream=streams.index(stream),
        )  # fmt: skip
        duties = (*t.duties, Duty(SUM_GRAD.name, "group"))
        program = program.with_tables(exchanges=exchanges, streams=streams, duties=duties)
        return program.inserted(np.array(before), device, new)

    def _behind_all(self, contributions: LastContributions, own: tuple[int, int, int, int]) -> int:
        """The row before which what nothing reduced is summed."""
        stage, device, _, group = own
        if not self.is_beside:
            return int(contributions.program.offsets[device + 1])
        return contributions.last(stage, group, device) + 1


def _reductions(program: Program) -> dict[tuple[int, int, int], int]:
    """The row of every REDUCE_GRAD by its stage, device and place of the group."""
    c = program.columns
    named = [e for e, effect in enumerate(program.tables.effects) if effect.name == REDUCE_GRAD.name]
    rows = np.flatnonzero(np.isin(c.effect, named))
    keys = zip(c.stage[rows].tolist(), program.list_of_row[rows].tolist(), c.part[rows].tolist(), strict=True)
    return dict(zip(keys, rows.tolist(), strict=True))


def partial_sums(lowering: Lowering) -> Pass | None:
    """The pass of a plan; None where no device has a term of what others have, too."""
    sizes = partial_sizes(lowering.plan, lowering.held)
    if not sizes:
        return None
    add = SumPartial({g: size.name for g, size in sizes.items()}, "reduce" in lowering.plan.overlap)
    return lambda program: add(
        program.with_tables(sizes=(*program.tables.sizes, *dict.fromkeys(sizes.values())))
    )
