"""Gradients of which devices keep a shard: those of every microbatch are scattered behind the last compute that adds to them
(ZeRO-2 and 3; Rajbhandari et al. 2020, arXiv 1910.02054), beside what is computed next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.core_vocabulary import MICROBATCH_GRADIENT, SCATTER_GRAD
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Effect, Exchange, Kind, ValueBytes
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.sharding.group_place import with_kind_at
from meshwright.specs.dtype import dtype_bytes
from meshwright.stage.group.parameter_group import gradient_sizes, scatter_exchanges
from meshwright.stage.piece import has_vocabulary_passes

Ints = NDArray[Any]
GRADIENT, STREAM = "weight_gradient", "reduce"
# Whole gradients at once: one that is made, and one that is scattered (PyTorch's FSDP2 waits for the reduce-scatter before).
IN_FLIGHT = 2


@dataclass(frozen=True)
class ScatterGradients:
    """Insert SCATTER_GRAD for every group in ``exchanges`` behind the last compute of each microbatch that adds to it; it
    adds to the shard. Computes add to the microbatch's own gradient instead, and one that begins another waits until all but
    the last that were made are scattered, as they are whole until then.

    ``is_beside``: on stream ``reduce``, else among the computes. It stands behind what replaces computes, and before what
    reduces the shards.
    """

    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    is_beside: bool = True
    name = "scatter_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its scatters."""
        program, (effect,) = with_effects(self._adding_apart(program), SCATTER_GRAD)
        made = _contributions(program, self.exchanges)
        t, stream = program.tables, STREAM if self.is_beside else "compute"
        exchanges = tuple(dict.fromkeys((*t.exchanges, *self.exchanges.values())))
        streams = tuple(dict.fromkeys((*t.streams, stream)))
        numbers = np.array([exchanges.index(self.exchanges[g]) for g in made.group.tolist()])
        c = program.columns
        new = Columns.of(
            len(made.last), effect=effect, stage=c.stage[made.stage_row], hop=c.hop[made.stage_row], part=made.place,
            microbatch=c.microbatch[made.last], exchange=numbers, stream=streams.index(stream),
        )  # fmt: skip
        program = program.with_tables(
            exchanges=exchanges, streams=streams, duties=(*t.duties, Duty(SCATTER_GRAD.name, "microbatch"))
        )
        lists = program.list_of_row[made.last]
        waits = _waits(made, lists) if self.is_beside else np.empty((0, 2), dtype=np.int64)
        grown = program.inserted(made.last + 1, lists, new)
        # a row stands behind all that were put before it, and a new one behind the row before which it was put
        at_old = waits[:, 0] + np.searchsorted(made.last + 1, waits[:, 0], side="right")
        at_new = made.last[waits[:, 1]] + 1 + waits[:, 1]
        return replace(
            grown, after=np.unique(np.concatenate([grown.after, np.stack([at_old, at_new], axis=1)]), axis=0)
        )

    def _adding_apart(self, program: Program) -> Program:
        """Computes add to the microbatch's gradients of the groups that are scattered, stage by stage."""

        def adds(effect: Effect) -> bool:
            return effect.kind == Kind.COMPUTE and any(p.kind == GRADIENT for p in effect.writes)

        return with_kind_at(program, self.exchanges, adds, "writes", GRADIENT, MICROBATCH_GRADIENT.name)


class _Contributions(NamedTuple):
    """By list, group and microbatch, in the order in which they end: the first and the last row that adds, the group, a row
    of the last of its stages that do, and the group's place among that stage's."""

    first: Ints
    last: Ints
    group: Ints
    stage_row: Ints
    place: Ints


def _contributions(program: Program, groups: Mapping[int, Exchange]) -> _Contributions:
    t, c = program.tables, program.columns
    adds = np.array([any(p.kind == MICROBATCH_GRADIENT.name for p in effect.writes) for effect in t.effects])
    found = np.flatnonzero(adds[c.effect])
    owned = [[(place, g) for place, g in enumerate(own) if g in groups] for own in t.groups_of_stage]
    counts = np.array([len(own) for own in owned])[c.stage[found]]
    rows = np.repeat(found, counts)
    flat = np.array([pair for own in owned for pair in own])
    first_of_stage = np.cumsum([0, *(len(own) for own in owned)])[c.stage[found]]
    chosen = np.repeat(first_of_stage - np.cumsum(counts) + counts, counts) + np.arange(len(rows))
    place, group = flat[chosen].T
    keys = np.stack([program.list_of_row[rows], group, c.microbatch[rows]])
    _, number = np.unique(keys, axis=1, return_inverse=True)
    order = np.lexsort((rows, number.ravel()))
    begins = np.flatnonzero(np.diff(number.ravel()[order], prepend=-1))
    ends = np.append(begins[1:], len(order)) - 1
    by_stage = np.lexsort((rows, c.stage[rows], number.ravel()))[ends]
    behind = np.lexsort((place[by_stage], rows[order[ends]]))
    return _Contributions(
        rows[order[begins]][behind], rows[order[ends]][behind], group[order[ends]][behind], rows[by_stage][behind],
        place[by_stage][behind],
    )  # fmt: skip


def _waits(made: _Contributions, lists: Ints) -> Ints:
    """(row that begins a gradient, number of the scatter that it waits for), where as many as are allowed are there."""
    found = []
    for device in np.unique(lists).tolist():
        own = np.flatnonzero(lists == device)
        closing, end = np.unique(made.last[own], return_index=True)
        ends = np.append(end[1:], len(own)) - 1  # of each closing row the last scatter behind it
        first = np.unique(made.first[own])
        before = np.searchsorted(closing, first) - IN_FLIGHT
        found.append(np.stack([first, own[ends[np.maximum(before, 0)]]], axis=1)[before >= 0])
    return np.concatenate(found)


def scattered(lowering: Lowering) -> Pass | None:
    """The pass of a plan; None where nobody shares gradients with others."""
    plan, held = lowering.plan, lowering.held
    exchanges, sizes = scatter_exchanges(plan, held), gradient_sizes(plan, held)
    if not exchanges:
        return None
    scatter = ScatterGradients(exchanges, "reduce" in plan.overlap)
    wide = dtype_bytes(plan.gradient_dtype)
    # with a split vocabulary those of several microbatches are made at once, added up in one buffer
    held_bytes = () if has_vocabulary_passes(plan) else tuple(float(wide * each.num_trained) for each in held)
    kept = (ValueBytes(MICROBATCH_GRADIENT.name, held_bytes),) if held_bytes else ()

    def made(program: Program) -> Program:
        t = program.tables
        named = (*t.sizes, *dict.fromkeys(sizes.values()))
        return scatter(program.with_tables(sizes=named, value_bytes=(*t.value_bytes, *kept)))

    return made
