"""A program of several ranks that exchange one tensor in every way there is, and its handlers.

B 2, S 8 x ranks, E 3 x ranks: what a rank makes is `made(rank)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.rank.exchange_handler import (
    all_gather,
    all_reduce,
    gather_along,
    reduce_scatter,
    scatter_along,
    swap_along,
)
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

COLLECTIVES = ("GATHER", "GATHER_TOKENS", "SCATTER_SUM", "SCATTER_TOKENS", "SUM", "SWAP")
MADE, RECEIVED = "made", "received"


def kind_of(name: str) -> str:
    """The kind of value that a collective writes."""
    return f"{name.lower()}_value"


def made(rank: int, num_ranks: int) -> Tensor:
    """A number apart at every place, in x_BSE."""
    shape = (num_ranks, 8 * num_ranks, 3 * num_ranks)
    x_BSE = torch.arange(shape[0] * shape[1] * shape[2], dtype=torch.float64).view(shape)
    return x_BSE + 1e4 * rank


# What is summed in place has one memory for all its versions: the sum waits for who still sends the one before.
KINDS = tuple(
    ValueKind(kind, index="none", microbatch=False, ring=int(kind == MADE))
    for kind in (MADE, RECEIVED, *map(kind_of, COLLECTIVES))
)
AT = Pattern(MADE, index="none")
MAKE = Effect(Kind.COMPUTE, "MAKE_WHOLE", (), (AT,))
EXCHANGES = tuple(
    Effect(Kind.COLLECTIVE, name, (AT,), (Pattern(kind_of(name), index="none"),)) for name in COLLECTIVES
)
IN_PLACE = Effect(Kind.COLLECTIVE, "SUM_IN_PLACE", (AT,), (AT,))
SEND = Effect(Kind.SEND, "SEND_ON", (AT,))
RECEIVE = Effect(Kind.RECEIVE, "RECV_ON", (), (Pattern(RECEIVED, index="none"),), AT)
WORDS = Vocabulary.of(*KINDS, *map(Name, (MAKE, *EXCHANGES, IN_PLACE, SEND, RECEIVE)), owner=__name__)


def exchanging(num_ranks: int) -> Program:
    """Each exchange behind the other, all of the same tensor; last the sum in place of it."""
    builder = ProgramBuilder(
        (Axis("tp", num_ranks),), vocabulary=WORDS, paths=((),), microbatches=(Microbatch(1, 1.0),)
    )
    around = Exchange(("tp",), None, 1)
    for rank in range(num_ranks):
        builder.add(rank, MAKE)
        builder.add(rank, SEND, stream="send/ring", exchange=around)
        builder.add(rank, RECEIVE, stream="receive/ring", exchange=around)
        for effect in EXCHANGES:
            builder.add(rank, effect, stream="tp", exchange=Exchange(("tp",)))
        builder.add(rank, IN_PLACE, stream="tp", exchange=Exchange(("tp",)))
    return builder.build()


def make(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """This rank's tensor."""
    return (made(context.rank, context.num_ranks),)


def _gather_tokens(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
    return gather_along(context, row, inputs[0], 1)


def _scatter_tokens(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
    return scatter_along(context, row, inputs[0], 1)


def _swap(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
    return swap_along(context, row, inputs[0], 2, 1)


HANDLERS: Handlers = {
    "MAKE_WHOLE": make,
    "GATHER": all_gather,
    "GATHER_TOKENS": _gather_tokens,
    "SCATTER_SUM": reduce_scatter,
    "SCATTER_TOKENS": _scatter_tokens,
    "SUM": all_reduce,
    "SUM_IN_PLACE": all_reduce,
    "SWAP": _swap,
}
