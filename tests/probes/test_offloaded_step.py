"""The offloaded step: golden text, its stall and its period by the closed forms, its window in the memory curve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.judge.metrics import peak_bytes
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text, to_text
from meshwright.specs.cluster.machine import HOSTS
from tests.golden.text import check_golden
from tests.probes.offloaded_step import UNIT_BYTES, WINDOW, offloaded_step
from tests.probes.timing import starts_of, trace_of

UNITS = 40
SECONDS = st.floats(0.1, 5.0)


def computes(load: float, compute: float, store: float, reads_slot: bool) -> np.ndarray:
    """Starts of the updates of all units."""
    seconds = {"LOAD_UNIT": load, "update_unit": compute, "STORE_UNIT": store}
    return np.array(starts_of(trace_of(offloaded_step(UNITS, reads_slot), seconds), "update_unit"))


def test_golden() -> None:
    for reads_slot, name in ((False, "own_buffer"), (True, "slot")):
        program = offloaded_step(4, reads_slot)
        check_golden(f"probe_offloaded_step_{name}", to_text(program))
        assert to_text(from_text(to_text(program))) == to_text(program)


@settings(max_examples=60)
@given(SECONDS, SECONDS, SECONDS)
def test_stall_with_a_buffer_of_its_own(load: float, compute: float, store: float) -> None:
    """Between two updates nothing but what loading takes longer, whatever storing takes."""
    stalls = np.diff(computes(load, compute, store, False))[UNITS // 2 :] - compute
    assert stalls == pytest.approx(max(0.0, load - compute), abs=1e-9)


@settings(max_examples=60)
@given(SECONDS, SECONDS, SECONDS)
def test_period_where_the_store_reads_the_slot(load: float, compute: float, store: float) -> None:
    """Over pairs of units: the window of two makes every second unit wait for the whole of the one two before."""
    starts = computes(load, compute, store, True)
    period = (starts[-1] - starts[UNITS // 2 - 1]) / (UNITS - UNITS // 2)
    assert period == pytest.approx(max(load, compute, store, (load + compute + store) / 2), abs=1e-9)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("reads_slot", [False, True])
def test_both_are_legal_and_hold_the_window(host: str, reads_slot: bool) -> None:
    program = offloaded_step(8, reads_slot)
    proof = verify(program, host)
    assert proof.peak_of("host") == 8 * UNIT_BYTES
    assert proof.peak_of() >= WINDOW * UNIT_BYTES
    trace = trace_of(program, {"LOAD_UNIT": 1.0, "update_unit": 1.0, "STORE_UNIT": 1.0}, 2, host)
    assert peak_bytes(trace) == WINDOW * UNIT_BYTES
    assert peak_bytes(trace, tier="host") == 8 * UNIT_BYTES
