"""What every rank of a grouped step computes, and the hops of keys and values around its groups.

What a rank has of a group is a microbatch of its own, on that rank alone: so paths, duties, weights and reductions are what
they are in any program with several paths, and every rank holds a copy of the parameters. Groups stand in one order, and a
rank's list follows its own of them in it, so hops cannot wait in a circle: of those that wait, the ones of the first group
wait for nobody but each other.

A hop goes from one microbatch of a group to the next, between two named ranks; no process group is made for it. It is
paired by the value as the receiver names it: a list that leaves a hop out, or has groups in another order, has an end
without the other, or a circle. How blocks lie is said along the group, which is no axis of the program: its length differs
from group to group, so `verify` does not read it there. That all blocks are seen it knows from the steps, each of which
reads the state of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.ir.layout import layout_text, layouts_of
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, ParameterGroup, Pattern
from meshwright.lowering.order import program_of_orders, with_effects
from meshwright.schedules.order import Compute, Orders
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.stage.mesh import CONTEXT

RANKS = "dp"  # the axis of the ranks: they hold the same parameters, and have other tokens


def group_orders(groups: GroupedBatch) -> Orders:
    """For every rank the forward and the backward of each of its groups, in their order."""
    orders: Orders = [[] for _ in range(groups.num_ranks)]
    for number, microbatch in enumerate(groups.microbatches):
        orders[microbatch.rank] += [Compute(name, 0, number) for name in ("F", "B")]
    return orders


def group_microbatches(groups: GroupedBatch) -> list[Microbatch]:
    """Tokens of each, and its share of those of the step: the loss is the mean over all of these."""
    return [Microbatch(each.part.num_tokens, groups.weight(each)) for each in groups.microbatches]


class _Hop(NamedTuple):
    """One end of a hop: between which ranks it is, the rank at its other end, and, of a sender, how many microbatches behind
    its own the receiver's is."""

    exchange: Exchange
    peer: int
    behind: int = 0

    def stream(self, around: str) -> str:
        """That to or from its peer, where a ring has one around its axis."""
        return f"{around.removesuffix(CONTEXT)}{RANKS}{self.peer}"


class GroupHops(NamedTuple):
    """A pass: hops of a ring around ``cp``, which the chains of a stage say, between the ranks of each microbatch's group."""

    groups: GroupedBatch

    def __call__(self, program: Program) -> Program:
        """The program with its hops between named ranks."""
        program = program.with_tables(effects=tuple(map(_unsaid_along_groups, program.tables.effects)))
        t, c = program.tables, program.columns
        is_hop = np.array([exchange.axes == (CONTEXT,) for exchange in t.exchanges] or [False])
        rows = np.flatnonzero((c.exchange >= 0) & is_hop[c.exchange])
        exchanges = dict.fromkeys(each for each in t.exchanges if each.axes != (CONTEXT,))
        streams, effects, ends = dict.fromkeys(t.streams), dict[Effect, None](), self._ends()
        columns = c.microbatch[rows], c.effect[rows], c.stream[rows]
        distinct, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        found = []
        for microbatch, number, stream in distinct.tolist():
            hop = ends[microbatch, t.effects[number].kind]
            own = _of_receiver(t.effects[number], hop.behind), hop.exchange, hop.stream(t.streams[stream])
            for table, each in zip((effects, exchanges, streams), own, strict=True):
                table.setdefault(each)  # type: ignore[attr-defined]
            found.append(own)
        program, numbers = with_effects(program, *effects)
        of_effect = dict(zip(effects, numbers, strict=True))
        of_exchange, of_stream = ({each: n for n, each in enumerate(table)} for table in (exchanges, streams))
        chosen = np.array([(of_effect[e], of_exchange[x], of_stream[s]) for e, x, s in found]).reshape(-1, 3)
        kept = np.array([of_exchange.get(each, -1) for each in t.exchanges] or [-1])
        made = {
            "effect": c.effect.copy(), "exchange": np.where(c.exchange < 0, -1, kept[c.exchange]),
            "stream": c.stream.copy(),
        }  # fmt: skip
        for column, values in zip(made.values(), chosen[place.reshape(-1)].T, strict=True):
            column[rows] = values
        return program.with_tables(exchanges=tuple(exchanges), streams=tuple(streams)).with_columns(**made)

    def _ends(self) -> Mapping[tuple[int, Kind], _Hop]:
        """Of every microbatch that sends, the hop to the next of its group, and that from the one before."""
        found: dict[tuple[int, Kind], _Hop] = {}
        first = 0
        for group in self.groups.groups:
            for place, rank in enumerate(group.ranks if group.degree > 1 else ()):
                behind = (place + 1) % group.degree
                exchange = Exchange((RANKS,), (rank, group.ranks[behind]))
                found[first + place, Kind.SEND] = _Hop(exchange, group.ranks[behind], behind - place)
                found[first + behind, Kind.RECEIVE] = _Hop(exchange, rank)
            first += group.degree
        return found


def _of_receiver(effect: Effect, behind: int) -> Effect:
    """A SEND that is paired by the value as the receiver's microbatch has it."""
    if not behind or effect.moves is None:
        return effect
    return effect._replace(moves=effect.moves._replace(microbatch=behind))


def _unsaid_along_groups(effect: Effect) -> Effect:
    """The effect without how values lie along a group."""

    def unsaid(pattern: Pattern) -> Pattern:
        said = layouts_of(pattern.layout)
        return pattern._replace(
            layout=layout_text({axis: how for axis, how in said.items() if axis != CONTEXT})
        )

    return effect._replace(
        reads=tuple(map(unsaid, effect.reads)), writes=tuple(map(unsaid, effect.writes)),
        moves=None if effect.moves is None else unsaid(effect.moves),
    )  # fmt: skip


def computes_of_groups(
    groups: GroupedBatch, held: Sequence[ParameterGroup], collapsed: Sequence[Axis]
) -> Program:
    """The program of what all ranks compute; `held`: parameter groups; `collapsed`: axes along which all do the same."""
    return program_of_orders(
        group_orders(groups), microbatches=group_microbatches(groups), groups=held, collapsed=collapsed, axis=RANKS
    )  # fmt: skip
