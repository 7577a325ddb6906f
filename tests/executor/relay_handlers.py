"""A program of two ranks for tests: rank 0 makes a number and sends it, rank 1 adds what it received; and its handlers.

`options` of a job say what goes wrong: {"rank": 1, "iteration": 2, "how": "raise" | "kill" | "exit" | "hang"}.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import torch

from meshwright.executor.rank.handler import Handlers, Row, ValueName
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary

ONE = (Microbatch(1, 1.0),)
NUMBER = ValueKind("number", index="none", microbatch=False)
TOTAL = ValueKind("total", index="none", microbatch=False, carried=True)
AT, SUM = Pattern("number", index="none"), Pattern("total", index="none")
MAKE = Effect(Kind.COMPUTE, "MAKE", (), (AT,))
SEND_NUMBER = Effect(Kind.SEND, "SEND_NUMBER", (AT,))
RECV_NUMBER = Effect(Kind.RECEIVE, "RECV_NUMBER", (), (AT,))
WORDS = Vocabulary.of(NUMBER, TOTAL, *map(Name, (MAKE, SEND_NUMBER, RECV_NUMBER)), owner=__name__)


def relay(age: int = 0) -> Program:
    """Rank 1 adds the number of `age` iterations ago."""
    add = Effect(Kind.COMPUTE, "ADD", (AT._replace(age=age), SUM), (SUM,))
    builder = ProgramBuilder((Axis("pp", 2),), vocabulary=WORDS, paths=((),), microbatches=ONE)
    exchange = Exchange(("pp",), (0, 1))
    builder.add(0, MAKE)
    builder.add(0, SEND_NUMBER, stream="send/pp1", exchange=exchange)
    builder.add(1, RECV_NUMBER, stream="receive/pp0", exchange=exchange)
    builder.add(1, add)
    return builder.build()


def first_values(age: int = 0) -> list[dict[ValueName, torch.Tensor]]:
    """Of both ranks: the total begins at zero, the number before the first one is 100."""
    values = {ValueName("total"): torch.zeros(1)}
    if age:
        values[ValueName("number")] = torch.full((1,), 100.0)
    return [{}, values]


def make(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """As many ones as iterations have begun: the shape is known only at run time."""
    _go_wrong(context)
    return (torch.ones(context.iteration + 1),)


def add(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The total and the number's sum."""
    _go_wrong(context)
    number, total = inputs
    return (total + number.sum(),)


def _go_wrong(context: Any) -> None:
    wish = context.options
    if wish.get("rank") != context.rank or wish.get("iteration") != context.iteration:
        return
    if wish["how"] == "raise":
        raise ValueError("this handler was told to fail")
    if wish["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if wish["how"] == "exit":
        os._exit(7)
    time.sleep(600)


HANDLERS: Handlers = {
    "MAKE": make,
    "ADD": add,
}
