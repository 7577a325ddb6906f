"""Steps that were watched: the sums that made them are found again, and a record tells what its steps computed."""

from __future__ import annotations

import random

import pytest
from tests.serving.engine.test_runner_engine import requests_of
from tests.serving.loop.test_run_record import scheduler
from tests.serving.told_engine import CONTEXT_S, DECODE_S, FIXED_S, PREFILL_TOKEN_S, ToldEngine

from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.run_record import RunRecord, replay
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.step_surface import line
from meshwright.serving.simulated.watched_steps import WatchedSteps, watched_steps
from meshwright.specs.error import SpecError


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_costs_are_found_again_and_a_replay_takes_as_long(preemption: str) -> None:
    record, at, clock = RunRecord(), scheduler(preemption), VirtualClock()
    engine = ToldEngine(at, repeats=False)
    requests = requests_of(3, 40, 1)
    for number, request in enumerate(requests):
        request.arrival_s, request.num_output_tokens = 0.02 * number, request.max_output_tokens
    ServingLoop(at, engine, RecordedArrivals(requests), clock, [record]).run()
    steps = WatchedSteps.of(watched_steps(record))
    assert steps.context_s == pytest.approx(CONTEXT_S, rel=1e-3) and steps.pair_s < 1e-12
    for tokens, decodes in ((0, 1), (0, 3), (9, 0), (7, 2)):
        known = FIXED_S + PREFILL_TOKEN_S * tokens + DECODE_S * decodes + CONTEXT_S * 20 * decodes
        shape = BatchShape(tokens, tokens, bool(tokens), decodes, 20 * decodes)
        assert steps.step(shape).latency_s == pytest.approx(known, rel=1e-4)

    other = scheduler(preemption)
    again = replay(record, other, SimulatedEngine(other, steps), VirtualClock())
    assert [step.decision for step in again.steps] == [step.decision for step in record.steps]
    for step, before in zip(again.steps, record.steps, strict=True):
        assert step.end_s - step.start_s == pytest.approx(before.end_s - before.start_s, rel=1e-6)


def test_no_cost_is_below_zero_and_noise_is_averaged() -> None:
    draw = random.Random(1)
    watched = []
    for _ in range(400):
        shape = BatchShape(
            draw.randint(0, 500), draw.randint(0, 10**5), 1, draw.randint(1, 32), draw.randint(32, 9000)
        )
        seconds = 0.01 + 2e-5 * shape.chunk_tokens + 1e-4 * shape.num_decodes
        watched.append((shape, seconds * draw.uniform(0.9, 1.1)))
    steps = WatchedSteps.of(watched)
    assert min(*steps.rows[2], steps.token_s, steps.pair_s, steps.decode_s, steps.context_s) >= 0.0
    for shape in (
        BatchShape(500, 10**4, 1, 2, 900),
        BatchShape(10, 50, 1, 20, 900),
        BatchShape(0, 0, 0, 30, 900),
    ):
        known = 0.01 + 2e-5 * shape.chunk_tokens + 1e-4 * shape.num_decodes
        assert steps.step(shape).latency_s == pytest.approx(known, rel=0.05)


def test_one_row_may_be_another_kernel_than_two_and_a_step_that_was_held_up_changes_little() -> None:
    """Doubled from the second row on, then even; every twentieth step is held up by a second."""
    known = {1: 0.01, 2: 0.02, 3: 0.02, 4: 0.02, 6: 0.025, 8: 0.03}
    shapes = [BatchShape(0, 0, 0, number, 100 * number) for number in known] * 40
    watched = [
        (shape, known[shape.num_decodes] + (1.0 if number % 20 == 3 else 0.0))
        for number, shape in enumerate(shapes)
    ]
    steps = WatchedSteps.of(watched)
    for number, seconds in known.items():
        assert steps.step(BatchShape(0, 0, 0, number, 100 * number)).latency_s == pytest.approx(
            seconds, rel=0.02
        )


def test_runs_are_sums_of_steps() -> None:
    steps = WatchedSteps(line([1, 64], [5e-3, 5e-3]), 0.0, 0.0, 1e-4, 1e-6)
    number, seconds = steps.run(4, 100, 10, 1.0)
    each = [steps.step(BatchShape(0, 0, 0, 4, 100 + 4 * step)).latency_s for step in range(10)]
    assert number == 10 and seconds == pytest.approx(sum(each))
    assert steps.run(4, 100, 10, each[0] * 1.5)[0] == 2


def test_a_handful_of_steps_is_not_enough() -> None:
    with pytest.raises(SpecError, match="20 or more"):
        WatchedSteps.of([(BatchShape(1), 0.1)] * 19)
