"""The rows of a relay: steps of computes around which an operand of every device travels once around a ring.

What travels, what stays and how what is owed comes home say the rounds of the relay (`stage.relay.rounds`). An operand goes
on to the next device while the step here computes with it. What follows goes one hop behind, since a step adds to what it
sends on; what returns goes straight back, and is added one step later, so that nobody waits for it.

What steps add to is versioned by step, and forward and again are of two kinds, so a step left out is a read of what nobody
wrote. Steps add in place, which is a ring of one: nobody reads the sum of fewer steps behind the next one. What is under way
is in two slots. How it lies says how far it has come: a step needs the operand of the device that many before its own,
what follows is home when it has gone around once, and what returns when it has gone back as far as what it is of had come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from meshwright.ir.core_vocabulary import SAVED
from meshwright.ir.layout import PARTIAL, dual, layout_text, layouts_of, turned
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.vocabulary import Name
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.stage.chain.chain import GRADIENT, Relay
from meshwright.stage.relay.rounds import GIVEN, KEPT, MADE, RELAYS, Owed, Round, Rounds

SLOTS = 2  # one is read while the next is filled
# Streams of their own: gradients wait for steps and operands do not, and what returns goes to another device each time.
LANES = {"follows": "gradient_", "returns": "returned_"}


def relay_kinds(rounds: Rounds) -> tuple[ValueKind, ...]:
    """Kinds of the values between steps."""
    found = dict[str, ValueKind]()
    for own in rounds.all:
        for kind, ring in _rings(own):
            found[kind] = ValueKind(kind, ring=ring)
    return tuple(found.values())


def _rings(own: Round) -> Iterator[tuple[str, int]]:
    """Kinds of a round, and how many slots each has."""
    if own.total:
        yield own.total, 1
    yield own.travels, SLOTS
    if own.prepared:
        yield own.prepared, 0
    owed = own.owed
    if owed is None:
        return
    if owed.way == "follows":
        yield from ((owed.arrived, SLOTS), (owed.made, 0))
    elif owed.way == "returns":
        yield from ((owed.total, 1), (owed.made, SLOTS), (owed.arrived, SLOTS))
    else:
        yield from ((owed.made, 1), (owed.arrived, 0))


_ROUNDS = tuple(dict.fromkeys(own for rounds in RELAYS for own in rounds.all))
# Of a kind with a version for every step, those that a step finds as its own part, and those it leaves to the next.
OF_STEP = frozenset(
    kind
    for own in _ROUNDS
    for kind in (own.travels, *((own.owed.made,) if own.owed and own.owed.way != "stays" else ()))
) | frozenset(own.owed.arrived for own in _ROUNDS if own.owed and own.owed.way == "returns")
BEHIND_STEP = frozenset(
    kind
    for own in _ROUNDS
    for kind in (
        own.total,
        *((own.owed.total,) if own.owed else ()),
        *((own.owed.arrived,) if own.owed and own.owed.way == "follows" else ()),
        *((own.owed.made,) if own.owed and own.owed.way == "stays" else ()),
    )
    if kind
)
NAMES = tuple(
    dict.fromkeys(
        [Name(Effect(Kind.COMPUTE, name), "some") for own in _ROUNDS for name in own.computes]
        + [
            Name(Effect(kind, f"{verb}_{message}"))
            for own in _ROUNDS
            for message in own.messages
            for kind, verb in ((Kind.SEND, "SEND"), (Kind.RECEIVE, "RECEIVE"))
        ]
    )
)


def relay_duties(relay: Relay) -> tuple[Duty, ...]:
    """Every step at most once, in their order; that each is done at all, the values of the next ones see to."""
    names = dict.fromkeys(name for own in relay.rounds.all for name in own.computes)
    return tuple(Duty(name, "some", relay.num_steps, order=1) for name in names)


def _here(kind: str, layout: str = "") -> Pattern:
    """As a step finds it."""
    return Pattern(kind, part="row", layout=layout)


def _next(kind: str, layout: str = "") -> Pattern:
    """As the step behind finds it."""
    return Pattern(kind, part="row", part_offset=1, layout=layout)


class RelayRows(NamedTuple):
    """Of a relay that is segment ``number``, which reads ``reads``; ``made``: how what it makes lies."""

    number: int
    relay: Relay
    reads: tuple[Pattern, ...]
    made: str = ""

    def forward(self, done: Effect) -> Iterator[ChainRow]:
        """All steps, and behind them `done`, which makes what the segment makes."""
        own = self.relay.rounds.forward
        own = own.again if done.name == "R" else own
        rows = RoundRows(self.number, self.relay, own, self._named, self._operand, self.made, self.made)
        yield from rows.all()
        reads = (self.reads[0], rows.sum if own.total else rows.home, *done.reads[len(self.reads) :])
        yield ChainRow(self.number, done._replace(reads=reads))

    def backward(self, done: Effect) -> Iterator[ChainRow]:
        """All steps, and behind them `done`, which makes the gradients of what the segment read."""
        (name,) = self.relay.step.writes
        own, operand = self.relay.rounds.backward, self._operand
        given = Pattern(name + GRADIENT, layout=dual(self.made))
        named = {**self._named, KEPT: SAVED, GIVEN: given, MADE: Pattern(name, layout=self.made)}
        if own.sends_prepared:
            operand = Pattern(own.prepared, layout=dual(operand.layout))
        elif own.prepared:
            named[own.prepared] = Pattern(own.prepared, layout=dual(self.made))
        (stays,) = (each for each in self.reads if each != self._operand)
        rows = RoundRows(
            self.number, self.relay, own, named, operand, dual(stays.layout), dual(operand.layout)
        )
        yield from rows.all()
        found = tuple(rows.home if each == self._operand else rows.sum for each in self.reads)
        yield ChainRow(self.number, done._replace(reads=(SAVED, *found, *done.reads[2:])))

    @property
    def _named(self) -> dict[str, Pattern]:
        return dict(zip(self.relay.step.reads, self.reads, strict=True))

    @property
    def _operand(self) -> Pattern:
        return self._named[self.relay.rounds.operand]


class RoundRows(NamedTuple):
    """Of one round. ``named``: what it may read besides; ``operand``: what travels, at home; ``kept`` and ``owed``: how sums
    of what stays lie, and what is owed once it is home."""

    number: int
    relay: Relay
    own: Round
    named: Mapping[str, Pattern]
    operand: Pattern
    kept: str
    owed: str

    def all(self) -> Iterator[ChainRow]:
        """What is prepared, all steps, and what brings home what is owed."""
        own, owed, last = self.own, self.own.owed, self.relay.num_steps - 1
        if own.prepares:
            made = self.operand if own.sends_prepared else self.named[own.prepared]
            reads = tuple(self.named[name] for name in own.prepared_from)
            yield ChainRow(self.number, Effect(Kind.COMPUTE, own.prepares, reads, (made,)))
        for step in range(last + 1):
            if step < last:  # it goes on while it is computed with
                yield from self._hop(step, 1, own.message, self._at(step), own.travels, "")
            yield ChainRow(self.number, self._computed(step), part=step)
            if owed is not None:
                yield from self._sent_home(owed, step)
        if owed is not None and owed.way == "returns":
            yield from (self._added(owed, step) for step in range(max(1, last - 1), last + 1))
        if owed is not None and owed.way == "stays":
            yield self._scattered(owed)

    @property
    def sum(self) -> Pattern:
        """Of what stays, behind the last step."""
        return self._behind(self.own.total, self.kept)

    @property
    def home(self) -> Pattern:
        """What is owed to this device, whole."""
        owed = self.own.owed
        assert owed is not None, "a round without a sum owes something"
        if owed.way == "stays":
            return Pattern(owed.arrived, layout=self.owed)
        if owed.way == "follows" and self.relay.num_steps == 1:  # it has not left
            return Pattern(owed.made, layout=self.owed)
        return self._behind(owed.arrived if owed.way == "follows" else owed.total, self.owed)

    def _computed(self, step: int) -> Effect:
        """A step: what stays, what is here, and what steps before it left."""
        own, owed = self.own, self.own.owed
        sums = [(own.total, self.kept)] if own.total else []
        come = [_here(kind, layout) for kind, layout in sums] if step else []
        made = [_next(kind, layout) for kind, layout in sums]
        if owed is not None and owed.way == "follows":
            how = self._turned(self.owed, step)
            come += [_here(owed.arrived, how)] if step else []
            made.append(_here(owed.made, how))
        elif owed is not None and owed.way == "returns":
            how = self._turned(self.owed, step)
            made.append(_here(owed.made, how) if step else _next(owed.total, self.owed))
        elif owed is not None:
            come += [_here(owed.made, self._term)] if step else []
            made.append(_next(owed.made, self._term))
        reads = (*(self.named[name] for name in own.stays), self._at(step), *come)
        return Effect(Kind.COMPUTE, own.step, reads, tuple(made))

    def _sent_home(self, owed: Owed, step: int) -> Iterator[ChainRow]:
        """What a step sends of what it owes; of what returned, what came for the step before is added now."""
        read = _here(owed.made, self._turned(self.owed, step))
        if owed.way == "follows" and self.relay.num_steps > 1:
            yield from self._hop(step, 1, owed.message, read, owed.arrived, LANES[owed.way])
        elif owed.way == "returns" and step:
            yield from self._hop(step, -step, owed.message, read, owed.arrived, LANES[owed.way])
            if 1 < step < self.relay.num_steps - 1:
                yield self._added(owed, step - 1)

    def _added(self, owed: Owed, step: int) -> ChainRow:
        """What came back of a step, added to the sum."""
        reads = (_here(owed.total, self.owed), _here(owed.arrived, self.owed))
        effect = Effect(Kind.COMPUTE, owed.adds, reads, (_next(owed.total, self.owed),))
        return ChainRow(self.number, effect, part=step)

    def _scattered(self, owed: Owed) -> ChainRow:
        """Every device's terms for all are summed, and each gets its own."""
        read = self._behind(owed.made, self._term)
        effect = Effect(
            Kind.COLLECTIVE, "REDUCE_SCATTER", (read,), (Pattern(owed.arrived, layout=self.owed),)
        )
        return ChainRow(self.number, effect, Exchange(self.relay.axes, algorithm="reduce_scatter"))

    @property
    def _term(self) -> str:
        """How what stays for all devices lies: each has a term of it."""
        found = layouts_of(self.owed)
        terms = {axis: PARTIAL for axis in self.relay.axes if axis in found}
        return layout_text({**found, **terms})

    def _turned(self, layout: str, step: int) -> str:
        """How something lies that is of what is here at a step."""
        return turned(layout, self.relay.axes[0], step, self.relay.num_steps)

    def _at(self, step: int) -> Pattern:
        """What is here at a step: first this device's own."""
        how = self._turned(self.operand.layout, step)
        return _here(self.own.travels, how) if step else self.operand

    def _behind(self, kind: str, layout: str) -> Pattern:
        """Behind the last step."""
        return Pattern(kind, part_offset=self.relay.num_steps, layout=layout)

    def _hop(
        self, step: int, shift: int, message: str, read: Pattern, arrives: str, lane: str
    ) -> Iterator[ChainRow]:
        """To a device, and from the one as far away on the other side: both ends are of the same step. What returns is for
        this step, all else for the next one."""
        exchange = Exchange(self.relay.axes, shift=shift)
        moves = _here(read.kind if lane else self.own.travels)
        how = self._turned(read.layout, shift)
        made = _here(arrives, how) if shift < 0 else _next(arrives, how)
        send = Effect(Kind.SEND, f"SEND_{message}", (read,), (), moves)
        receive = Effect(Kind.RECEIVE, f"RECEIVE_{message}", (), (made,), moves)
        yield ChainRow(self.number, send, exchange, step, f"send/{lane}")
        yield ChainRow(self.number, receive, exchange, step, f"receive/{lane}")
