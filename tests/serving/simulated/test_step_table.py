"""The table says what simulated steps take, and a run of steps is their sum."""

from __future__ import annotations

import pytest
from tests.serving.simulated_case import MOST_CONTEXT, MOST_SEQUENCES, MOST_TOKENS, program, table

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.step_model import EveryStep
from meshwright.serving.simulated.step_surface import Grid


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_the_table_is_near_to_simulated_steps(tp: int, pp: int) -> None:
    """Of 100 batches that it was not made of: half within 0.5 %, all but 5 % within 2 %."""
    error = table(tp, pp).error(100)
    assert error.median < 0.005 and error.p95 < 0.02 and abs(error.bias) < 0.005


def test_at_its_nodes_the_table_is_exact() -> None:
    """Decodes alone, and rows alone, of sizes that are simulated."""
    grid = Grid.of(MOST_TOKENS, MOST_SEQUENCES, MOST_CONTEXT)
    for number in grid.decodes[0]:
        batch = BatchShape.of((), number, number * 64)
        assert table().step(batch).latency_s == pytest.approx(program().step(batch).latency_s, rel=1e-9)


def test_the_slowest_stage_has_a_table_of_its_own() -> None:
    """Of one stage it is the same."""
    batch = BatchShape.of([(0, 77)], 5, 1000)
    alone, staged = table().step(batch), table(2, 2).step(batch)
    assert alone.latency_s == alone.period_s
    assert 0.4 * staged.latency_s < staged.period_s < 0.7 * staged.latency_s


@pytest.mark.parametrize("context", [16, 50, 120 * 7, 4000 * 7])
@pytest.mark.parametrize("most", [1, 2, 37, 400])
def test_a_run_is_the_sum_of_its_steps(context: int, most: int) -> None:
    """Over several pieces of the line, and beyond its last node; whatever the time that is left."""
    steps = table()
    each = [steps.step(BatchShape.of((), 7, context + 7 * step)).latency_s for step in range(most)]
    number, seconds = steps.run(7, context, most, 1e9)
    assert number == most and seconds == pytest.approx(sum(each), rel=1e-9)
    for span_s in (0.0, 0.4 * sum(each), 0.999 * sum(each)):
        begun = next((n for n in range(1, most) if sum(each[:n]) >= span_s), most)
        assert steps.run(7, context, most, span_s) == pytest.approx((begun, sum(each[:begun])), rel=1e-9)


def test_every_step_simulated_is_run_alike() -> None:
    """The same number of steps within a time, and nearly the same seconds."""
    exact = EveryStep(program()).run(7, 7 * 200, 40, 0.15)
    quick = table().run(7, 7 * 200, 40, 0.15)
    assert exact[0] == quick[0] and quick[1] == pytest.approx(exact[1], rel=0.01)
