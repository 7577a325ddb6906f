"""Rows that write in place what others still read: refused, unless a stream, a dependency or a ring keeps them apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import meshwright.ir.judge.verify as verify_module
from meshwright.ir.judge.verify import verify
from meshwright.ir.kernel import kernel
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Exchange, Hop, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import ProgramError

VALUE, SUM = Pattern("value", index="none"), Pattern("sum", index="none")
MAKE = Effect(Kind.COMPUTE, "make", (), (VALUE,))
SHARE = Effect(Kind.COLLECTIVE, "share", (VALUE,), (SUM,))
READ = Effect(Kind.COMPUTE, "read", (SUM,))
ADD = Effect(Kind.COMPUTE, "add", (VALUE,), (VALUE,))
WORDS = MAKE, SHARE, READ, ADD


def built(
    *rows: tuple[Effect, str], ring: int = 0, accumulates: bool = False, microbatches: int = 1
) -> Program:
    """The rows on their streams, for every microbatch."""
    kinds = (
        ValueKind("value", index="none", ring=ring, accumulates=accumulates), ValueKind("sum", index="none"),
    )  # fmt: skip
    names = [Name(effect, "some" if effect.kind == Kind.COMPUTE else "") for effect in WORDS]
    builder = ProgramBuilder(
        (Axis("tp", 2, False),), vocabulary=Vocabulary.of(*names, *kinds), paths=((Hop(0, 0),),),
        microbatches=(Microbatch(1, 1.0 / microbatches),) * microbatches,
    )  # fmt: skip
    for microbatch in range(microbatches):
        for effect, stream in rows:
            exchange = Exchange(("tp",)) if effect.kind == Kind.COLLECTIVE else None
            builder.add(0, effect, exchange=exchange, stream=stream, microbatch=microbatch)
    return builder.build()


UNORDERED = (MAKE, "compute"), (SHARE, "tp"), (ADD, "compute")
ORDERED = {
    "it waits for what the reader made": ((MAKE, "compute"), (SHARE, "tp"), (READ, "compute"), (ADD, "compute")),
    "they are on one stream": ((MAKE, "compute"), (SHARE, "tp"), (ADD, "tp")),
    "the reader stands behind it": ((MAKE, "compute"), (ADD, "compute"), (SHARE, "tp")),
    "it writes anew": ((MAKE, "compute"), (SHARE, "tp"), (MAKE._replace(name="add"), "compute")),
}  # fmt: skip


def test_a_row_that_overwrites_what_another_may_still_read_is_refused() -> None:
    with pytest.raises(ProgramError, match="0add0 writes in place what 0share0 may still read on stream tp"):
        verify(built(*UNORDERED))


@pytest.mark.parametrize("why", ORDERED)
def test_rows_that_are_kept_apart_pass(why: str) -> None:
    verify(built(*ORDERED[why]))


def test_a_ring_of_one_and_a_written_dependency_keep_them_apart() -> None:
    verify(built(*UNORDERED, ring=1))
    verify(replace(built(*UNORDERED), after=np.array([[2, 1]])))


def test_a_ring_of_two_does_not() -> None:
    """The version before is in the other slot; that this row writes over it, its slot does not say."""
    with pytest.raises(ProgramError, match="give the kind of this value a ring of one"):
        verify(built(*UNORDERED, ring=2))


def test_nothing_else_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "check_in_place", lambda _: None)
    verify(built(*UNORDERED))


def test_compiled_programs_are_checked_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SMALL_ROWS", 0)
    num = 3
    program = built(*ORDERED["it waits for what the reader made"], microbatches=num)
    verify(program)
    streams = program.columns.stream.copy()
    streams[4 * num - 2] = program.columns.stream[1]  # the last microbatch's reader of what was made
    with pytest.raises(ProgramError, match=f"0add{num - 1} writes in place what 0share{num - 1}"):
        verify(program.with_columns(stream=streams))
