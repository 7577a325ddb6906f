"""Records: what a real engine's loop decided is decided again, in the same order, by an engine that only counts time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.serving.case import LIMITS, check_books
from tests.serving.engine.test_runner_engine import BLOCK_TOKENS, requests_of
from tests.serving.hash_runner import HashRunner
from tests.serving.told_engine import ToldEngine

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock, WallClock
from meshwright.serving.loop.run_record import RunRecord, replay
from meshwright.serving.loop.service import Service
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.specs.error import SpecError

NUM_BLOCKS, NUM_HOST_BLOCKS = 12, 16
ENDS = (3, 4, 5)


def scheduler(preemption: str = "swap") -> Scheduler:
    """Of a small engine, for whom requests have to leave."""
    return Scheduler(
        ContinuousBatching(preemption=preemption, watermark=0.0), BlockPool(NUM_BLOCKS, BLOCK_TOKENS), LIMITS,
        BlockPool(NUM_HOST_BLOCKS, BLOCK_TOKENS),
    )  # fmt: skip


def hash_engine(now_s, depth: int) -> RunnerEngine:  # type: ignore[no-untyped-def]
    """A real one, whose texts end where it says."""
    return RunnerEngine(HashRunner(NUM_BLOCKS, BLOCK_TOKENS, NUM_HOST_BLOCKS), now_s, ENDS, depth)


class StepClock:
    """A real engine's, on which every step takes a second."""

    def __init__(self, engine: RunnerEngine) -> None:
        self._engine, self._waited_s = engine, 0.0

    def now_s(self) -> float:
        """Steps, and what was waited between them."""
        return self._waited_s + self._engine._num_polled

    def reach(self, time_s: float) -> None:
        """Wait."""
        self._waited_s += max(0.0, time_s - self.now_s())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_a_recorded_run_is_decided_again(depth: int, preemption: str, tmp_path: Path) -> None:
    record, at = RunRecord(), scheduler(preemption)
    requests = requests_of(8, 20, 1)
    for number, request in enumerate(requests):
        request.arrival_s = 2.0 * number
    engine = hash_engine(lambda: clock.now_s(), depth)
    clock = StepClock(engine)
    ServingLoop(at, engine, RecordedArrivals(requests), clock, [record]).run()
    record.write(tmp_path / "run.jsonl")
    recorded = RunRecord.read(tmp_path / "run.jsonl")
    assert len({each.batch for each in recorded.requests.values()}) > 3
    assert any(sum(step.moves) for step in recorded.steps) or preemption == "recompute"

    other = scheduler(preemption)
    again = replay(recorded, other, ToldEngine(other, repeats=False, depth=depth), VirtualClock())
    assert [step.decision for step in again.steps] == [step.decision for step in recorded.steps]
    check_books(other)
    assert other.pool.num_held == 0


def test_who_was_ended_is_ended_again() -> None:
    record, made = RunRecord(), []

    def start(clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        made.append(scheduler())
        return made[-1], hash_engine(clock.now_s, 1)

    with Service(start, observers=[record]) as service:
        goes = service.submit(Request("goes", 3, 40, prompt=[7, 8, 9]))
        next(iter(goes))
        stays = service.submit(Request("stays", 3, 30, prompt=[9, 8, 7]))
        next(iter(stays))
        service.abort("goes")
        assert len(list(stays)) + len(list(goes)) > 1
    other = scheduler()
    again = replay(record, other, ToldEngine(other, repeats=False), VirtualClock())
    assert [step.decision for step in again.steps] == [step.decision for step in record.steps]


class BreakingRunner(HashRunner):
    """Fails in its fifth step."""

    def forward(self, inputs: StepInputs) -> np.ndarray:
        """As the others, until then."""
        if self.num_forwards == 4:
            self.failing = RuntimeError("a wheel came off")
        return super().forward(inputs)


def test_a_record_ends_where_an_engine_fails_and_what_it_has_is_decided_again() -> None:
    record, runners = RunRecord(), list[HashRunner]()

    def start(clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        kind = HashRunner if runners else BreakingRunner
        runners.append(kind(NUM_BLOCKS, BLOCK_TOKENS, NUM_HOST_BLOCKS))
        return scheduler(), RunnerEngine(runners[-1], clock.now_s, ENDS, 1)

    with Service(start, observers=[record]) as service:
        first = service.submit(Request("first", 3, 40, prompt=[7, 8, 9]))
        assert [delta.finish_reason for delta in first][-1] == "error"
        num_steps = len(record.steps)
        assert list(service.submit(Request("second", 3, 5, prompt=[9, 8, 7])))
    assert record.is_over and len(record.steps) == num_steps and list(record.requests) == ["first"]
    other = scheduler()
    again = replay(record, other, ToldEngine(other, repeats=False), VirtualClock())
    assert [step.decision for step in again.steps] == [step.decision for step in record.steps]


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    for text in (
        "",
        "{}",
        '{"meshwright-serving-record": 99}',
        '{"meshwright-serving-record": 1}\n{"step": 3}',
    ):
        file.write_text(text)
        with pytest.raises(SpecError, match="no record of a serving run"):
            RunRecord.read(file)
