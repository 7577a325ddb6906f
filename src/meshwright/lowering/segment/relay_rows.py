"""The rows of a relay: steps of computes around which the operand of every device travels once around a ring.

Forward, step s attends with the block that has come s hops, while it goes on to the next device. Backward the blocks travel
again, and their gradients one hop behind them, since a step adds to what it sends on; one hop more brings them home. What
steps add to is versioned by step, and forward and again are of two kinds, so a step left out is a read of what nobody wrote.
Steps add in place, which is a ring of one: nobody reads the sum of fewer steps behind the next one. Blocks under way are in
two slots. How a block lies says how far it has come: a step needs the block of the device that many
before its own, and the gradient that is home has gone around once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.ir.core_vocabulary import SAVED
from meshwright.ir.layout import dual, turned
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueKind
from meshwright.ir.vocabulary import Name
from meshwright.lowering.segment.chain_row import ChainRow
from meshwright.stage.chain.chain import AGAIN, GRADIENT, Relay

SLOTS = 2  # one is read while the next is filled
# What steps add to: the sum so far of what is attended, and of the gradient of what attends.
STATE, SUM = "attention_state", "query_sum"
STATE_AGAIN = STATE + AGAIN
# A block under way; its gradient as a step leaves it, and as it came.
BLOCK, LEAVING, ARRIVED = "travelling_block", "leaving_gradient", "arrived_gradient"
RELAY_KINDS = (
    *(ValueKind(kind, ring=1) for kind in (STATE, STATE_AGAIN, SUM)),
    *(ValueKind(kind, ring=SLOTS) for kind in (BLOCK, ARRIVED)),
    ValueKind(LEAVING),
)
ATTEND, ATTEND_AGAIN, ATTEND_BACKWARD = "ATTEND", "ATTEND_AGAIN", "ATTEND_BACKWARD"
SEND_BLOCK, RECEIVE_BLOCK = "SEND_BLOCK", "RECEIVE_BLOCK"
SEND_GRADIENT, RECEIVE_GRADIENT = "SEND_BLOCK_GRADIENT", "RECEIVE_BLOCK_GRADIENT"
NAMES = (
    *(Name(Effect(Kind.COMPUTE, name), "some") for name in (ATTEND, ATTEND_AGAIN, ATTEND_BACKWARD)),
    *(Name(Effect(Kind.SEND, name)) for name in (SEND_BLOCK, SEND_GRADIENT)),
    *(Name(Effect(Kind.RECEIVE, name)) for name in (RECEIVE_BLOCK, RECEIVE_GRADIENT)),
)


def relay_duties(relay: Relay) -> tuple[Duty, ...]:
    """Every step at most once, in their order; that each is done at all, the values of the next ones see to."""
    names = (ATTEND, ATTEND_AGAIN, ATTEND_BACKWARD)
    return tuple(Duty(name, "some", relay.num_steps, order=1) for name in names)


def _here(kind: str, layout: str = "") -> Pattern:
    """As a step finds it."""
    return Pattern(kind, part="row", layout=layout)


def _next(kind: str, layout: str = "") -> Pattern:
    """As the step behind finds it."""
    return Pattern(kind, part="row", part_offset=1, layout=layout)


class RelayRows(NamedTuple):
    """Of a relay that is segment ``number``, which reads ``query`` and, of this device, ``block``; ``made``: how what it
    makes lies."""

    number: int
    relay: Relay
    query: Pattern
    block: Pattern
    made: str = ""

    def forward(self, done: Effect) -> Iterator[ChainRow]:
        """All steps, and behind them `done`, which makes what the segment makes."""
        name, kind = (ATTEND_AGAIN, STATE_AGAIN) if done.name == "R" else (ATTEND, STATE)
        for step in range(self.relay.num_steps):
            yield from self._block_hop(step)
            reads = (self.query, self._block(step), *((_here(kind, self.made),) if step else ()))
            yield self._computed(step, Effect(Kind.COMPUTE, name, reads, (_next(kind, self.made),)))
        rest = done.reads[2:]
        yield ChainRow(self.number, done._replace(reads=(self.query, self._behind(kind, self.made), *rest)))

    def backward(self, done: Effect) -> Iterator[ChainRow]:
        """All steps, and behind them `done`, which makes the gradients of what the segment read."""
        (attended,) = self.relay.step.writes
        given = Pattern(attended + GRADIENT, layout=dual(self.made))
        own = dual(self.query.layout)
        for step in range(self.relay.num_steps):
            yield from self._block_hop(step)
            travelling = dual(self._turned(step))
            come = (_here(SUM, own), _here(ARRIVED, travelling)) if step else ()
            reads = (SAVED, given, self._block(step), *come)
            yield self._computed(
                step,
                Effect(Kind.COMPUTE, ATTEND_BACKWARD, reads, (_next(SUM, own), _here(LEAVING, travelling))),
            )
            if self.relay.num_steps == 1:  # it has not left
                continue
            leaving = _here(LEAVING, travelling)
            yield from self._hop(step, (SEND_GRADIENT, RECEIVE_GRADIENT), leaving, _here(LEAVING), ARRIVED)
        rest = done.reads[2:]
        home = self._behind(ARRIVED, dual(self.block.layout))
        if self.relay.num_steps == 1:
            home = Pattern(LEAVING, layout=dual(self.block.layout))
        yield ChainRow(self.number, done._replace(reads=(SAVED, self._behind(SUM, own), home, *rest)))

    def _computed(self, step: int, effect: Effect) -> ChainRow:
        return ChainRow(self.number, effect, part=step)

    def _turned(self, step: int) -> str:
        """How the block of a step lies."""
        return turned(self.block.layout, self.relay.axis, step, self.relay.num_steps)

    def _block(self, step: int) -> Pattern:
        """The block of a step: first this device's own."""
        return _here(BLOCK, self._turned(step)) if step else self.block

    def _behind(self, kind: str, layout: str) -> Pattern:
        """Behind the last step."""
        return Pattern(kind, part_offset=self.relay.num_steps, layout=layout)

    def _block_hop(self, step: int) -> Iterator[ChainRow]:
        """A block goes on while it is attended to, but for the last one."""
        if step < self.relay.num_steps - 1:
            yield from self._hop(step, (SEND_BLOCK, RECEIVE_BLOCK), self._block(step), _here(BLOCK), BLOCK)

    def _hop(
        self, step: int, names: tuple[str, str], read: Pattern, moves: Pattern, arrives: str
    ) -> Iterator[ChainRow]:
        """To the next device, and from the one before: both ends are of the same step. Gradients wait for steps and blocks
        do not, so each have lanes of their own."""
        exchange, lane = Exchange((self.relay.axis,), shift=1), "gradient_" * (names[0] == SEND_GRADIENT)
        behind = turned(read.layout, self.relay.axis, 1, self.relay.num_steps)
        send = Effect(Kind.SEND, names[0], (read,), (), moves)
        receive = Effect(Kind.RECEIVE, names[1], (), (_next(arrives, behind),), moves)
        yield ChainRow(self.number, send, exchange, step, f"send/{lane}")
        yield ChainRow(self.number, receive, exchange, step, f"receive/{lane}")
