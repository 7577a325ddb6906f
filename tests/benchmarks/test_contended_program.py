"""The contended program of the benchmark: its rows slow each other down, and both event engines give the same times."""

from __future__ import annotations

import numpy as np
import pytest
from contended_program import COSTS, HOPS, PARTS, STAGES, contended

from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.simulator import price, run
from meshwright.simulator.event.reference import interpret_events
from meshwright.specs.cluster.machine import HOSTS

MICROBATCHES = 2


@pytest.mark.parametrize("host", HOSTS)
def test_it_is_contended_and_both_engines_agree(host: str) -> None:
    wiring = wire(contended(MICROBATCHES))
    assert wiring.program.num_rows == MICROBATCHES * 2 * PARTS * (3 * STAGES * HOPS + 2 * (STAGES - 1) + 1)
    prices = price(wiring, COSTS, COSTS, None)
    engine, times = run(wiring, prices, host=host)
    assert engine == "event"
    for ours, theirs in zip(times, interpret_events(wiring, prices, host=host), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    alone = replay(wiring, prices.seconds, prices.latency_s, prices.cost_of_row, host=host)
    assert times[2].max() > alone[2].max() + 1.0
