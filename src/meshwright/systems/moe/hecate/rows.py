"""Steps of a layer of experts with copies, as a program: parameters go out, tokens go and come back, gradients come home."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.systems.moe.hecate.mechanism import Move

AXIS = "ep"
OWNED, LOSS, GRADIENT = (
    ValueKind(name, index="none", microbatch=False, carried=True)
    for name in ("owned_experts", "step_loss", "expert_gradients")
)
OUT, COPY_GRADIENT, ROWS, RESULTS, ROW_GRADIENTS = (
    ValueKind(name, index="none", microbatch=False)
    for name in ("copied_expert", "copy_gradient", "sent_rows", "row_results", "row_gradients")
)


def _part(kind: ValueKind, number: int | None = None) -> Pattern:
    """A value of a row's part, or of a part by its number."""
    if number is None:
        return Pattern(kind.name, index="none", part="row")
    return Pattern(kind.name, index="none", part_offset=number)


MAKE = Effect(Kind.COMPUTE, "MAKE_EXPERTS", (), (_part(OWNED),))
CUT = Effect(Kind.COMPUTE, "CUT_EXPERT", (), (_part(OUT),))
DISPATCH = Effect(Kind.COMPUTE, "DISPATCH_ROWS", (), ())
FORWARD = Effect(Kind.COMPUTE, "EXPERTS_F", (), ())
COMBINE = Effect(Kind.COMPUTE, "COMBINE_ROWS", (), ())
BACKWARD = Effect(Kind.COMPUTE, "EXPERTS_B", (), ())
STEP = Effect(Kind.COMPUTE, "EXPERTS_STEP", (), ())
SENDS = {
    kind.name: (
        Effect(Kind.SEND, f"SEND_{word}", (_part(kind),)),
        Effect(Kind.RECEIVE, f"RECV_{word}", (), (_part(kind),)),
    )
    for kind, word in (
        *((OUT, "EXPERT"), (ROWS, "ROWS"), (RESULTS, "RESULTS")),
        *((ROW_GRADIENTS, "ROW_GRADIENTS"), (COPY_GRADIENT, "EXPERT_GRADIENT")),
    )
}
COMPUTES = (MAKE, CUT, DISPATCH, FORWARD, COMBINE, BACKWARD, STEP)
VOCABULARY = Vocabulary.of(
    *(OWNED, LOSS, GRADIENT, OUT, COPY_GRADIENT, ROWS, RESULTS, ROW_GRADIENTS),
    *(Name(effect, "path") for effect in COMPUTES),
    *(Name(effect) for pair in SENDS.values() for effect in pair),
    owner="hecate",
)


class StepRows:
    """The rows of one step. Parts: a move's number among all steps' moves; of two ranks (step, from, to) as one number; of a
    rank's state the step."""

    def __init__(
        self, builder: ProgramBuilder, num_ranks: int, step: int, first_move: int, moves: Sequence[Move]
    ) -> None:
        self.builder, self.num, self.step = builder, num_ranks, step
        self.moves = {first_move + number: move for number, move in enumerate(moves)}

    def pair(self, source: int, target: int) -> int:
        """The part of what goes from one rank to another."""
        return (self.step * self.num + source) * self.num + target

    def add(self) -> None:
        """In an order that all ranks have, so no two wait for each other in a circle."""
        ranks, step = range(self.num), self.step
        for number, move in self.moves.items():
            self._compute(move.owner, CUT, number, (_part(OWNED, step),), (_part(OUT, number),))
        self._move(OUT, {number: (move.owner, move.target) for number, move in self.moves.items()})
        for rank in ranks:
            self._compute(rank, DISPATCH, step, (), self._to_all(ROWS, rank))
        self._move(ROWS, self._between())
        for rank in ranks:
            self._compute(rank, FORWARD, step, self._computed_with(rank), self._to_all(RESULTS, rank))
        self._move(RESULTS, self._between())
        for rank in ranks:
            made = (_part(LOSS, step), *self._to_all(ROW_GRADIENTS, rank))
            self._compute(rank, COMBINE, step, self._from_all(RESULTS, rank), made)
        self._move(ROW_GRADIENTS, self._between())
        for rank in ranks:
            came = tuple(
                _part(COPY_GRADIENT, number) for number, move in self.moves.items() if move.target == rank
            )
            reads = (*self._computed_with(rank), *self._from_all(ROW_GRADIENTS, rank))
            self._compute(rank, BACKWARD, step, reads, (_part(GRADIENT, 2 * step), *came))
        self._move(COPY_GRADIENT, {number: (move.target, move.owner) for number, move in self.moves.items()})
        for rank in ranks:
            home = tuple(
                _part(COPY_GRADIENT, number) for number, move in self.moves.items() if move.owner == rank
            )
            reads = (_part(OWNED, step), _part(GRADIENT, 2 * step), *home)
            self._compute(rank, STEP, step, reads, (_part(OWNED, step + 1), _part(GRADIENT, 2 * step + 1)))

    def _computed_with(self, rank: int) -> tuple[Pattern, ...]:
        """Its own experts, copies that came, and rows of all ranks."""
        copies = (_part(OUT, number) for number, move in self.moves.items() if move.target == rank)
        return (_part(OWNED, self.step), *copies, *self._from_all(ROWS, rank))

    def _to_all(self, kind: ValueKind, rank: int) -> tuple[Pattern, ...]:
        return tuple(_part(kind, self.pair(rank, other)) for other in range(self.num))

    def _from_all(self, kind: ValueKind, rank: int) -> tuple[Pattern, ...]:
        return tuple(_part(kind, self.pair(other, rank)) for other in range(self.num))

    def _between(self) -> dict[int, tuple[int, int]]:
        ranks = range(self.num)
        return {self.pair(one, two): (one, two) for one in ranks for two in ranks if one != two}

    def _compute(
        self, rank: int, effect: Effect, part: int, reads: tuple[Pattern, ...], writes: tuple[Pattern, ...]
    ) -> None:
        self.builder.add(rank, effect._replace(reads=reads, writes=writes), stage=rank, part=part)

    def _move(self, kind: ValueKind, ends: dict[int, tuple[int, int]]) -> None:
        send, receive = SENDS[kind.name]
        for number, (source, target) in ends.items():
            exchange = Exchange((AXIS,), ends=(source, target))
            self.builder.add(
                source, send, stage=source, part=number, stream=f"send/{target}", exchange=exchange
            )
            self.builder.add(
                target, receive, stage=target, part=number, stream=f"receive/{source}", exchange=exchange
            )


def training_steps(num_ranks: int, moves_of_steps: Sequence[Sequence[Move]]) -> Program:
    """The program of some steps, a list for every rank."""
    steps, num_moves = len(moves_of_steps), sum(map(len, moves_of_steps))
    every = (DISPATCH, FORWARD, COMBINE, BACKWARD, STEP)
    duties = (
        Duty(MAKE.name), Duty(CUT.name, per="some", parts=max(1, num_moves)),
        *(Duty(effect.name, parts=steps) for effect in every),
    )  # fmt: skip
    builder = ProgramBuilder(
        (Axis(AXIS, num_ranks),),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(rank, rank) for rank in range(num_ranks)),),
        duties=duties,
        vocabulary=VOCABULARY,
    )
    for rank in range(num_ranks):
        builder.add(rank, MAKE._replace(writes=(_part(OWNED, 0),)), stage=rank)
    first = 0
    for step, moves in enumerate(moves_of_steps):
        StepRows(builder, num_ranks, step, first, moves).add()
        first += len(moves)
    return builder.build()
