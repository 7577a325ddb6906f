"""Recompute: what forward keeps shrinks to its input, R stands once before the first half of a backward."""

from __future__ import annotations

import pytest
from tests.schedules.timing import trace_of

from meshwright.ir.core_vocabulary import REMADE
from meshwright.ir.judge.metrics import peak_alive, span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered

TIMES = (1.0, 1.2, 0.8)


def lowered(name: str, p: int, m: int, *passes: object) -> Program:
    program = program_of_orders(registered()[name].orders(p, m))
    for one in passes:
        program = one(program)  # type: ignore[operator]
    return Transfers()(program)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1"])
def test_every_backward_has_its_recompute(name: str) -> None:
    program = lowered(name, 2, 3, Recompute())
    verify(program)
    texts = [[view.text for view in program.instructions(d) if view.name in "RBI"] for d in range(2)]
    for row in texts:
        for place in range(0, len(row), 2):
            assert row[place] == row[place + 1].replace("B", "R").replace("I", "R")


def test_activations_live_from_recompute_to_backward() -> None:
    assert peak_alive(trace_of(lowered("gpipe", 4, 8), TIMES)) == [8] * 4
    assert peak_alive(trace_of(lowered("gpipe", 4, 8, Recompute()), TIMES)) == [1] * 4


def test_recompute_adds_one_forward_a_microbatch() -> None:
    plain, again = (span_s(trace_of(lowered("gpipe", 4, 8, *ps), TIMES)) for ps in ((), (Recompute(),)))
    assert again - plain == pytest.approx(8 * TIMES[0], abs=1e-9)  # the first of a device runs while it waits


def test_some_stages_only() -> None:
    program = lowered("1f1b", 3, 2, Recompute(stages=(1,)))
    verify(program)
    assert [sum(view.name == "R" for view in program.instructions(d)) for d in range(3)] == [0, 2, 0]


def test_stages_that_are_recomputed_in_part_keep_and_make_again() -> None:
    """Stage 0 is recomputed wholly, stage 1 in part, stage 2 not; W reads what R made as long as it needs it."""
    for passes in ((), (SplitBackward(),)):
        program = lowered("1f1b", 3, 4, *passes, Recompute(stages=(0,), partly=(1,)))
        verify(program)
        assert from_text(to_text(program)).digest() == program.digest()
        assert [sum(view.name == "R" for view in program.instructions(d)) for d in range(3)] == [4, 4, 0]
        trace = trace_of(program, TIMES)
        assert peak_alive(trace) == [1, 2, 1]
        assert peak_alive(trace, REMADE.name) == [0, 1, 0]


def test_split_after_recompute_and_recompute_after_split_share_one_r() -> None:
    for passes in ((SplitBackward(), Recompute()), (Recompute(), SplitBackward())):
        program = lowered("1f1b", 2, 2, *passes)
        verify(program)
        row = [view.text for view in program.instructions(1) if view.name in "FRIW"]
        assert row == "1F0 1R0 1I0 1W0 1F1 1R1 1I1 1W1".split()


def test_split_keeps_the_times() -> None:
    plain, split = (lowered("1f1b", 4, 8, *ps) for ps in ((), (SplitBackward(),)))
    assert span_s(trace_of(split, TIMES)) <= span_s(trace_of(plain, TIMES)) + 1e-9
