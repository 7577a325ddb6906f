"""A linear layer between two remappings, as a program: every rank has its even share of tokens in it, its own behind it."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Duty, Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.systems.sequence.zeppelin.remap import TokenMove

AXIS = "dp"
ATTENDED = ValueKind("attended_tokens", index="none", microbatch=False)
MOVED = ValueKind("moved_tokens", index="none", microbatch=False)
EVEN = ValueKind("even_outputs", index="none", microbatch=False, carried=True)
RETURNED = ValueKind("returned_outputs", index="none", microbatch=False)
OWN = ValueKind("own_outputs", index="none", microbatch=False, carried=True)


def _part(kind: ValueKind, number: int | None = None) -> Pattern:
    """A value of a row's part, or of a part by its number."""
    if number is None:
        return Pattern(kind.name, index="none", part="row")
    return Pattern(kind.name, index="none", part_offset=number)


ALL = _part(ATTENDED, 0), _part(EVEN, 0), _part(OWN, 0)
ATTEND = Effect(Kind.COMPUTE, "MAKE_TOKENS", (), (ALL[0],))
CUT = Effect(Kind.COMPUTE, "CUT_TOKENS", (ALL[0],), (_part(MOVED),))
SEND = Effect(Kind.SEND, "SEND_TOKENS", (_part(MOVED),))
RECEIVE = Effect(Kind.RECEIVE, "RECV_TOKENS", (), (_part(MOVED),))
LINEAR = Effect(Kind.COMPUTE, "LINEAR_OF_EVEN", (ALL[0],), (ALL[1],))
CUT_BACK = Effect(Kind.COMPUTE, "CUT_OUTPUTS", (ALL[1],), (_part(RETURNED),))
SEND_BACK = Effect(Kind.SEND, "SEND_OUTPUTS", (_part(RETURNED),))
RECEIVE_BACK = Effect(Kind.RECEIVE, "RECV_OUTPUTS", (), (_part(RETURNED),))
RESTORE = Effect(Kind.COMPUTE, "OWN_OUTPUTS", (ALL[1],), (ALL[2],))
COMPUTES = (ATTEND, CUT, LINEAR, CUT_BACK, RESTORE)
VOCABULARY = Vocabulary.of(
    *(ATTENDED, MOVED, EVEN, RETURNED, OWN),
    *(Name(effect, "path") for effect in COMPUTES),
    *map(Name, (SEND, RECEIVE, SEND_BACK, RECEIVE_BACK)),
    owner="zeppelin",
)


def remapped_linear(num_ranks: int, moves: Sequence[TokenMove]) -> Program:
    """The program: a list for every rank; a part of what moves is a move, by its number."""
    every = Duty("", per="path"), Duty("", per="some", parts=max(1, len(moves)))
    builder = ProgramBuilder(
        (Axis(AXIS, num_ranks),),
        microbatches=(Microbatch(1, 1.0),),
        paths=(tuple(Hop(rank, rank) for rank in range(num_ranks)),),
        duties=tuple(every[one in (CUT, CUT_BACK)]._replace(name=one.name) for one in COMPUTES),
        vocabulary=VOCABULARY,
    )
    for rank in range(num_ranks):
        builder.add(rank, ATTEND, stage=rank)
    for number, move in enumerate(moves):
        builder.add(move.source, CUT, stage=move.source, part=number)
    _exchange(builder, SEND, RECEIVE, [(move.source, move.target) for move in moves])
    for rank in range(num_ranks):
        came = tuple(_part(MOVED, number) for number, move in enumerate(moves) if move.target == rank)
        builder.add(rank, LINEAR._replace(reads=(*LINEAR.reads, *came)), stage=rank)
    for number, move in enumerate(moves):
        builder.add(move.target, CUT_BACK, stage=move.target, part=number)
    _exchange(builder, SEND_BACK, RECEIVE_BACK, [(move.target, move.source) for move in moves])
    for rank in range(num_ranks):
        back = tuple(_part(RETURNED, number) for number, move in enumerate(moves) if move.source == rank)
        builder.add(rank, RESTORE._replace(reads=(*RESTORE.reads, *back)), stage=rank)
    return builder.build()


def _exchange(
    builder: ProgramBuilder, send: Effect, receive: Effect, ends: Sequence[tuple[int, int]]
) -> None:
    """Every part from its first rank to its second."""
    for number, (source, target) in enumerate(ends):
        exchange = Exchange((AXIS,), ends=(source, target))
        builder.add(source, send, stage=source, part=number, stream=f"send/{target}", exchange=exchange)
        builder.add(target, receive, stage=target, part=number, stream=f"receive/{source}", exchange=exchange)
