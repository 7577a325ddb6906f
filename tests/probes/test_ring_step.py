"""The ring step: golden text, what is refused, and how long it takes."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError, ProgramError
from tests.golden.text import check_golden
from tests.probes.ring_step import SIZE, ring_step
from tests.probes.timing import trace_of


def test_golden() -> None:
    check_golden("probe_ring_step", to_text(ring_step()))
    assert to_text(from_text(to_text(ring_step()))) == to_text(ring_step())


@pytest.mark.parametrize("host", HOSTS)
def test_it_runs_with_two_slots_or_a_batch(host: str) -> None:
    verify(ring_step(slots=2), host)
    verify(ring_step(slots=2, streams="one", batched=True), host)
    verify(ring_step(slots=0), host)


@pytest.mark.parametrize("host", HOSTS)
def test_one_stream_without_batches_is_refused(host: str) -> None:
    with pytest.raises(DeadlockError, match="<-- here"):
        verify(ring_step(streams="one"), host)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("batched", [False, True])
def test_one_slot_is_refused(host: str, batched: bool) -> None:
    """A device would have to give away what it holds into a slot that waits for the same of the next one."""
    with pytest.raises(ProgramError, match="slot|deadlock"):
        verify(ring_step(slots=1, streams="one" if batched else "four", batched=batched), host)


def attention_first(program: Program) -> Program:
    """The same, each attention before the exchanges of its step instead of behind them."""
    order = []
    for low in program.offsets[:-1].tolist():
        order.append(low)
        for first in range(low + 1, low + 1 + 5 * (SIZE - 1), 5):
            order += [first + 4, *range(first, first + 4)]
        order += [low + 1 + 5 * (SIZE - 1), low + 2 + 5 * (SIZE - 1)]
    return program.reordered(np.array(order), program.offsets)


@pytest.mark.parametrize("host", HOSTS)
def test_one_slot_is_a_deadlock_even_where_nobody_reads_behind_the_write(host: str) -> None:
    verify(attention_first(ring_step(slots=2)), host)
    with pytest.raises(DeadlockError, match="give the ring more slots"):
        verify(attention_first(ring_step(slots=1)), host)


@pytest.mark.parametrize("attend, move", [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)])
def test_steps_hide_the_shorter_of_attention_and_message(attend: float, move: float) -> None:
    """The first step runs beside the first message, so three messages and one attention, or four attentions."""
    moves = dict.fromkeys(("GIVE_RIGHT", "TAKE_RIGHT", "GIVE_LEFT", "TAKE_LEFT"), move)
    trace = trace_of(ring_step(), {"attend": attend, **moves})
    assert trace.end_s.max() == pytest.approx((SIZE - 1) * max(attend, move) + attend)
