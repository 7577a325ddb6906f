"""The realised order as a program: legal, whole, within memory, as long as the dispatch, and its own judge of order."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.ir.trace import Trace
from meshwright.simulator.simulate import simulate_program
from meshwright.systems.pipeline.skip_pipe.arrival_dispatch import Dispatch, Injection, Network, dispatch
from meshwright.systems.pipeline.skip_pipe.published_paths import MEMORY, PLANS, STAGE_OF_NODE, network
from meshwright.systems.pipeline.skip_pipe.realised_order import WAIT, DispatchCosts, realised_program


def replayed(program: Program, message_s: np.ndarray) -> Trace:
    costs = DispatchCosts(message_s)
    return simulate_program(program, costs, costs)


@pytest.fixture(scope="module", params=PLANS)
def found(request: pytest.FixtureRequest) -> Dispatch:
    return dispatch(network(), PLANS[request.param].injections())


def test_the_program_is_legal_and_keeps_the_memory(found: Dispatch) -> None:
    program = realised_program(found, STAGE_OF_NODE)
    assert verify(program).peak_of() == MEMORY
    assert metrics.peak_bytes(replayed(program, network().message_s)) == MEMORY


def test_every_work_begins_when_the_dispatch_began_it(found: Dispatch) -> None:
    program = realised_program(found, STAGE_OF_NODE)
    trace = replayed(program, network().message_s)
    hops = found.num_hops
    begun = {}
    for device in range(program.num_lists):
        for row in program.instructions(device):
            if row.name in ("F", "B") and not (row.name == "B" and row.hop == hops):
                leg = row.hop if row.name == "F" else 2 * hops - row.hop
                begun[row.microbatch, leg] = trace.start_s[0, row.row]
    assert len(begun) == found.start_s.size
    for (microbatch, leg), start_s in begun.items():
        assert start_s == pytest.approx(found.start_s[microbatch, leg], abs=1e-9)


def test_waits_are_gaps_refusals_and_injections() -> None:
    """Two microbatches, memory for one: the second injection is due at 5, and begins at 7.38 behind a backward's gap."""
    injected = (Injection((0, 1), 0.0), Injection((0, 1), 5.0))
    message_s = np.full((2, 2), 0.5)
    found = dispatch(Network(message_s, np.ones(2), 1), injected)
    program = realised_program(found, {0: 0, 1: 1})
    waits = [row for d in (0, 1) for row in program.instructions(d) if row.name == WAIT.name]
    assert [row.work.share for row in waits if row.work and row.device == 0] == pytest.approx(
        [0.09, 0.13, 0.13, 0.09, 0.13]
    )
    assert metrics.span_s(replayed(program, message_s)) == pytest.approx(found.span_s)


def test_another_order_has_another_span() -> None:
    """The dispatch is not baked into the times: slower messages move what depends on them."""
    found = dispatch(network(), PLANS["collision-free"].injections())
    program = realised_program(found, STAGE_OF_NODE)
    slower = replayed(program, network().message_s + 0.1)
    assert metrics.span_s(slower) > found.span_s + 1.0


def test_paths_are_data_of_the_microbatches() -> None:
    program = realised_program(dispatch(network(), PLANS["random"].injections()), STAGE_OF_NODE)
    assert len(program.tables.paths) == 14 + 1
    assert {len(path) for path in program.tables.paths} == {5}
    assert program.path_of(0)[0] == (0, 0) and program.path_of(0)[-1] == (6, 0)
    assert from_text(to_text(program)).digest() == program.digest()


def test_without_waits_only_the_order_is_left() -> None:
    found = dispatch(network(), PLANS["collision-free"].injections())
    program = realised_program(found, STAGE_OF_NODE, tokens=7, has_waits=False)
    verify(program, host="in_order")
    assert WAIT.name not in {effect.name for effect in program.tables.effects}
    assert {microbatch.tokens for microbatch in program.tables.microbatches} == {7}
