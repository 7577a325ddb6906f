"""The sharded layer: golden text, and as many layers resident as the ring has slots."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.metrics import peak_bytes
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text, to_text
from meshwright.specs.cluster.machine import HOSTS
from tests.golden.text import check_golden
from tests.probes.sharded_layer import LAYER_BYTES, sharded_layer
from tests.probes.timing import trace_of

SECONDS = {"gather_layer": 1.0, "apply_layer": 1.0}


def test_golden() -> None:
    check_golden("probe_sharded_layer", to_text(sharded_layer(num_layers=4)))
    assert to_text(from_text(to_text(sharded_layer()))) == to_text(sharded_layer())


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("gather_s, apply_s", [(0.1, 1.0), (1.0, 1.0), (1.0, 0.1)])
def test_as_many_layers_are_resident_as_there_are_slots(slots: int, gather_s: float, apply_s: float) -> None:
    """However fast the gathers are; where they are slow no ring fills."""
    trace = trace_of(sharded_layer(slots), {"gather_layer": gather_s, "apply_layer": apply_s})
    peak = slots if gather_s < apply_s else min(slots, 2)
    assert [peak_bytes(trace, device) for device in (0, 1)] == [peak * LAYER_BYTES] * 2


def test_the_curve_shows_two_layers_from_the_first_compute_to_the_last_gather() -> None:
    curve = trace_of(sharded_layer(2, num_layers=6), SECONDS).memory[0]
    inside = (curve.times_s >= 1.0) & (curve.times_s < 6.0)
    assert set(curve.bytes[inside].tolist()) == {2 * LAYER_BYTES}
    assert curve.bytes[-1] == 0.0


@pytest.mark.parametrize("host", HOSTS)
def test_the_bound_counts_slots(host: str) -> None:
    for slots in (1, 2, 3):
        assert verify(sharded_layer(slots), host).peak_of() == slots * LAYER_BYTES


def test_one_slot_hides_nothing_and_two_hide_the_shorter() -> None:
    """With one slot every gather waits for the compute before it."""
    for gather_s, apply_s in ((1.0, 2.0), (2.0, 1.0)):
        seconds = {"gather_layer": gather_s, "apply_layer": apply_s}
        one, two = (trace_of(sharded_layer(slots), seconds).end_s.max() for slots in (1, 2))
        assert one == pytest.approx(6 * (gather_s + apply_s))
        assert two == pytest.approx(5 * max(gather_s, apply_s) + gather_s + apply_s)
