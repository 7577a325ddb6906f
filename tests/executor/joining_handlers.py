"""A program whose ranks sum a number that the next row waits for, which the host runs itself, beside a fetch on a stream.

`options` of a job say what goes wrong: {"rank": 1, "iteration": 2, "row": "SUM", "how": "raise" | "kill" | "hang"}; "absent":
a rank that never comes to the sum. A fetch takes a moment, in which the host gets to the sum.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import torch

from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

FETCH_S = 0.5  # by then the host stands in the sum
KINDS = tuple(ValueKind(name, index="none", microbatch=False) for name in ("own", "fetched", "total", "used"))
OWN, FETCHED, TOTAL, USED = (Pattern(kind.name, index="none") for kind in KINDS)
MAKE = Effect(Kind.COMPUTE, "MAKE_OWN", (), (OWN,))
FETCH = Effect(Kind.CALL, "FETCH", (), (FETCHED,))
SUM = Effect(Kind.COLLECTIVE, "SUM", (OWN,), (TOTAL,))
USE = Effect(Kind.COMPUTE, "USE", (TOTAL, FETCHED, OWN), (USED,))
WORDS = Vocabulary.of(*KINDS, *map(Name, (MAKE, FETCH, SUM, USE)), owner=__name__)


def joining(num_ranks: int) -> Program:
    """Every rank makes a number, and uses the sum of all."""
    builder = ProgramBuilder(
        (Axis("dp", num_ranks),), vocabulary=WORDS, paths=((),), microbatches=(Microbatch(1, 1.0),)
    )
    for rank in range(num_ranks):
        builder.add(rank, MAKE)
        builder.add(rank, FETCH, stream="host")
        builder.add(rank, SUM, stream="reduce", exchange=Exchange(("dp",), algorithm="ring"))
        builder.add(rank, USE)
    return builder.build()


def make(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """This rank's power of ten."""
    _go_wrong(context, row)
    return (torch.full((1,), 10.0**context.rank),)


def fetch(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Nothing, slowly."""
    if context.options:
        time.sleep(FETCH_S)
    _go_wrong(context, row)
    return (None,)


def sum_of_all(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
    """Over the ranks."""
    _go_wrong(context, row)
    return all_reduce(context, row, inputs)


def use(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The sum, and behind it what this rank gave."""
    return (torch.cat([inputs[0], inputs[2]]),)


def _go_wrong(context: Any, row: Row) -> None:
    wish = context.options
    if row.name == "MAKE_OWN" and (wish.get("absent"), wish.get("iteration")) == (
        context.rank,
        context.iteration,
    ):
        time.sleep(600)
    if (wish.get("rank"), wish.get("iteration"), wish.get("row")) != (
        context.rank,
        context.iteration,
        row.name,
    ):
        return
    if wish["how"] == "raise":
        raise ValueError("this handler was told to fail")
    if wish["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


HANDLERS: Handlers = {"MAKE_OWN": make, "FETCH": fetch, "SUM": sum_of_all, "USE": use}
