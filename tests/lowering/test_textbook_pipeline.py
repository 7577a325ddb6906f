"""Equal stages of a registered schedule: the span and bubble of the formulas, with chunks and messages."""

from __future__ import annotations

import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.simulator.simulate import simulate_program


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_the_bubble_is_the_formulas(schedule: str, chunks: int) -> None:
    devices, microbatches, costs = 4, 8, FixedCosts.from_times(1.0, 1.0, 1.0)
    trace = simulate_program(textbook_pipeline(schedule, devices, microbatches, chunks), costs, costs)
    assert metrics.busy_s(trace).tolist() == pytest.approx([3.0 * microbatches] * devices)
    assert metrics.span_s(trace) == pytest.approx(3.0 * (microbatches + (devices - 1) / chunks))


def test_a_message_of_the_first_microbatch_is_waited_for_both_ways() -> None:
    costs = FixedCosts.from_times(1.0, 1.0, 1.0, 0.5)
    assert metrics.span_s(simulate_program(textbook_pipeline("gpipe", 2, 1), costs, costs)) == pytest.approx(
        7.0
    )
