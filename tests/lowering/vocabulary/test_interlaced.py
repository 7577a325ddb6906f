"""An interlaced vocabulary: 1.5 p microbatches alive, every exchange shown, no other bubble; what it refuses."""

from __future__ import annotations

import math

import pytest
from tests.lowering.vocabulary.test_split import SECONDS, Messages, computes, priced, split

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.vocabulary.split import SplitVocabulary
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import ProgramError

NUM_EXCHANGES = 5  # of a microbatch: input, output, softmax, and the gradients of both


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8])
def test_half_as_many_microbatches_more_are_alive(p: int) -> None:
    """As floor(1.5 (s + 1)) with s stages behind: 1.5 p on the first of an even number (arXiv 2411.05288)."""
    program, costs = split("1f1b", p, 4 * p, "interlaced"), FixedCosts(SECONDS)
    verify(program)
    verify(program, "in_order")
    found = metrics.peak_alive(simulate_program(priced(program, p), costs, costs))
    assert found == [math.floor(1.5 * (p - device)) for device in range(p)]


@pytest.mark.parametrize("collective_s", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("p", [2, 5, 8])
def test_a_microbatch_costs_its_computes_and_its_exchanges(p: int, collective_s: float) -> None:
    costs, messages = FixedCosts(SECONDS), Messages(collective_s=collective_s)
    spans = [
        metrics.span_s(simulate_program(priced(split("1f1b", p, m, "interlaced"), p), costs, messages))
        for m in (4 * p, 8 * p)
    ]
    each = 1 + 2 + 0.2 + 0.2 + 0.01 + 0.01 + NUM_EXCHANGES * collective_s
    assert spans[1] - spans[0] == pytest.approx(4 * p * each, rel=1e-9)


def test_any_order_with_one_stage_a_device_becomes_the_same() -> None:
    one, other = (split(schedule, 4, 8, "interlaced") for schedule in ("1f1b", "gpipe"))
    assert one.digest() == other.digest()
    assert from_text(to_text(one)).digest() == one.digest()


def test_a_path_that_comes_back_is_refused() -> None:
    with pytest.raises(ProgramError, match="comes back to a device"):
        SplitVocabulary("interlaced")(computes("v_half", 2, 4))
