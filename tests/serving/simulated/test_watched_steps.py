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
    assert (steps.fixed_s, steps.token_s, steps.decode_s) == pytest.approx(
        (FIXED_S, PREFILL_TOKEN_S, DECODE_S), rel=1e-6
    )
    assert steps.context_s == pytest.approx(CONTEXT_S, rel=1e-3) and steps.pair_s < 1e-12

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
    assert min(steps.fixed_s, steps.token_s, steps.pair_s, steps.decode_s, steps.context_s) >= 0.0
    assert (steps.fixed_s, steps.token_s, steps.decode_s) == pytest.approx((0.01, 2e-5, 1e-4), rel=0.1)


def test_runs_are_sums_of_steps() -> None:
    steps = WatchedSteps(5e-3, 0.0, 0.0, 1e-4, 1e-6)
    number, seconds = steps.run(4, 100, 10, 1.0)
    each = [steps.step(BatchShape(0, 0, 0, 4, 100 + 4 * step)).latency_s for step in range(10)]
    assert number == 10 and seconds == pytest.approx(sum(each))
    assert steps.run(4, 100, 10, each[0] * 1.5)[0] == 2


def test_a_handful_of_steps_is_not_enough() -> None:
    with pytest.raises(SpecError, match="20 or more"):
        WatchedSteps.of([(BatchShape(1), 0.1)] * 19)
