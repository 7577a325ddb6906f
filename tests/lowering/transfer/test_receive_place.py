"""Receives early and late: their places, what they wait for, and what that does to span and memory."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.covering import always
from tests.ir.random_program import random_orders
from tests.lowering.plans import plan
from tests.schedules.timing import trace_of

from meshwright.ir.judge.metrics import span_s
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind, ParameterGroup, ValueBytes
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.lower import lower
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep
from meshwright.lowering.transfer.receive_place import PlaceReceives
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs import PassOption, PlanError
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError

TIMES = (1.0, 1.0, 1.0)
MESSAGE = 0.5  # of a forward


def schedule(name: str = "1f1b", p: int = 4, m: int = 8) -> Program:
    program = program_of_orders(
        registered()[name].orders(p, m), groups=[ParameterGroup(f"stage{s}", (s,)) for s in range(p)]
    )
    sizes = (ValueBytes("activation", (1.0,)), ValueBytes("gradient", (1.0,)))
    return OptimizerStep()(Transfers()(program.with_tables(value_bytes=sizes)))


def computes_between(program: Program) -> list[int]:
    """For every receive of an activation the computes between it and the F that reads it."""
    found = []
    for device in range(program.num_lists):
        rows = list(program.instructions(device))
        for place, view in enumerate(rows):
            if view.name == "RECV_F":
                behind = [r for r in rows[place:] if r.kind == Kind.COMPUTE]
                found.append([r.text for r in behind].index(f"{view.stage}F{view.microbatch}"))
    return found


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("name", sorted({"1f1b", "gpipe", "zb_h1", "interleaved_1f1b"}))
def test_every_receive_stands_where_it_is_asked_for(name: str, ahead: int) -> None:
    before = (
        schedule(name)
        if name != "interleaved_1f1b"
        else Transfers()(program_of_orders(registered()[name].orders(4, 8)))
    )
    program = PlaceReceives(ahead)(before)
    for host in HOSTS:
        verify(program, host)
    assert outputs(program) == outputs(before)
    # never later than asked for; earlier only where its stream or the beginning of the list says so
    assert min(computes_between(program)) >= 0
    if ahead == 0 and name in ("1f1b", "gpipe"):
        assert set(computes_between(program)) == {0}
    for receive, compute in program.after.tolist():
        assert program.kinds[receive] == Kind.RECEIVE and program.kinds[compute] == Kind.COMPUTE
        assert compute < receive
    assert from_text(to_text(program)).digest() == program.digest()
    assert PlaceReceives(ahead)(program).digest() == program.digest()


def test_a_late_receive_holds_its_sender_up_and_saves_memory() -> None:
    """With messages half as long as a forward: posted just in time, every one of them is seen; that is what it costs."""
    spans, peaks = {}, {}
    for ahead in (0, 1, 4):
        program = PlaceReceives(ahead)(schedule("gpipe"))
        spans[ahead] = span_s(trace_of(program, TIMES, 1.0, MESSAGE, host="asynchronous"))
        peaks[ahead] = verify(program).peak_of()
    free = span_s(trace_of(schedule("gpipe"), TIMES, 1.0, MESSAGE, host="asynchronous"))
    assert spans[0] > spans[1] >= spans[4] >= free
    assert peaks[0] < peaks[1] < peaks[4] <= verify(schedule("gpipe")).peak_of()


def test_two_computes_hide_what_one_does_not() -> None:
    """An in-order host posts a receive where it stands: messages of 1.5 forwards need two computes beside them."""
    spans = {
        ahead: span_s(trace_of(PlaceReceives(ahead)(schedule("gpipe")), TIMES, 1.0, 1.5, host="in_order"))
        for ahead in (0, 1, 2, 3)
    }
    assert spans[0] > spans[1] > spans[2] >= spans[3]


@pytest.mark.parametrize("block", always(range(2), {0}))
def test_random_orders_run_wherever_their_receives_stand(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        rng = Random(seed)
        orders = random_orders(
            rng, rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3), rng.random() < 0.4
        )
        program = Transfers()(program_of_orders(orders))
        for ahead in (0, 1, 3):
            placed = PlaceReceives(ahead)(program)
            for host in HOSTS:
                verify(placed, host)
            assert np.array_equal(np.bincount(placed.list_of_row), np.bincount(program.list_of_row))


def test_a_plan_names_it() -> None:
    asked = plan(pp=4, passes=(PassOption("place_receives", {"computes_ahead": 0}),))
    program = lower(asked, registered()["1f1b"])
    verify(program)
    assert len(program.after)
    assert not len(lower(plan(pp=4), registered()["1f1b"]).after)
    for options in ({"computes_ahead": "2"}, {"computes": 2}):
        with pytest.raises(PlanError, match="computes_ahead"):
            lower(plan(pp=4, passes=(PassOption("place_receives", options),)), registered()["1f1b"])
    with pytest.raises(ProgramError, match="0 or more"):
        PlaceReceives(-1)(schedule())
