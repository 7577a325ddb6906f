"""A service: streams of tokens, bounds, deadlines, callers that go, engines that fail; and nothing is held afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue

import numpy as np
import pytest
from tests.serving.case import LIMITS
from tests.serving.hash_runner import HashRunner, HashStep, PipelinedHashRunner, greedy_output

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.loop.output_stream import OutputStream
from meshwright.serving.loop.service import MOST_FAILURES, Service
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.specs.error import Draining, ExecutionError, QueueFull, RequestRefused


class SlowRunner(HashRunner):
    """A step takes as long as it is told."""

    step_s = 0.0

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        """Wait, then compute."""
        time.sleep(self.step_s)
        return super().forward(inputs)


class Started:
    """Services of one runner after the other."""

    def __init__(self) -> None:
        self.runners: list[SlowRunner] = []

    def __call__(self, clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        """A scheduler and an engine."""
        runner = SlowRunner()
        runner.step_s = self.runners[-1].step_s if self.runners else 0.0
        self.runners.append(runner)
        scheduler = Scheduler(ContinuousBatching(), BlockPool(runner.num_blocks, 4), LIMITS)
        return scheduler, RunnerEngine(runner, clock.now_s, depth=2)


@pytest.fixture
def started() -> Started:
    """How services begin."""
    return Started()


@pytest.fixture
def service(started: Started) -> Iterator[Service]:
    """A service of four places; afterwards nothing is held."""
    with Service(started, max_queue=4) as service:
        yield service
        until_s = time.monotonic() + 10
        rows = service._engine._row_of  # type: ignore[attr-defined]  # of a step that was given out before the last token came
        while (
            service._thread.is_alive()
            and (service.snapshot().num_open or rows)
            and time.monotonic() < until_s
        ):
            time.sleep(0.01)
        if service._thread.is_alive():
            assert (service.snapshot().num_open, service.snapshot().num_held_blocks, rows) == (0, 0, {})


def request(name: str, num_tokens: int = 10, **more: object) -> Request:
    """Of three tokens."""
    return Request(name, 3, num_tokens, prompt=[1, 2, 3], **more)  # type: ignore[arg-type]


def read(stream: OutputStream, index: int = 0) -> tuple[list[int], str]:
    """The tokens of an output, and why it ended."""
    tokens, reason = [], ""
    for delta in stream:
        if delta.index == index:
            tokens += delta.token_ids
            reason = delta.finish_reason or reason
    return tokens, reason


def test_streams_give_all_outputs(service: Service) -> None:
    streams = [service.submit(request(f"r{i}", 12, num_outputs=2)) for i in range(3)]
    for stream in streams:
        pieces = list(stream)
        for index in range(2):
            assert [t for d in pieces if d.index == index for t in d.token_ids] == greedy_output(
                [1, 2, 3], 12
            )
        assert [d.finish_reason for d in pieces].count("length") == 2


class LateStep(HashStep):
    """Ends when it is told to."""

    def __init__(self, runner: PipelinedHashRunner) -> None:
        super().__init__(runner)
        self.is_over, self.wakes = threading.Event(), list[Callable[[], None]]()

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Has somebody said so?"""
        self.wakes.append(wake)
        return self.is_over.is_set()

    def end(self) -> None:
        """Say so."""
        self.is_over.set()
        for wake in self.wakes:
            wake()

    def logits(self) -> np.ndarray:
        """Wait for that."""
        self.is_over.wait()
        return super().logits()


def test_a_request_goes_to_a_lane_that_is_free_when_it_comes() -> None:
    """While the other lane's step runs the service listens."""
    steps: Queue[LateStep] = Queue()

    class LateRunner(PipelinedHashRunner):
        step_kind = LateStep

        def start(self, inputs):  # type: ignore[no-untyped-def]
            step = super().start(inputs)
            steps.put(step)
            return step

    def start(clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        runner = LateRunner(40, 4, 0, 2)
        scheduler = Scheduler(ContinuousBatching(), BlockPool(40, 4), LIMITS, None, 2)
        return scheduler, RunnerEngine(runner, clock.now_s)

    with Service(start) as service:
        first = service.submit(request("a", 1))
        step = steps.get(timeout=10)
        second = service.submit(request("b", 1))
        try:
            steps.get(timeout=10).end()  # it runs beside the first
        finally:
            step.end()
        assert read(first) == read(second) == (greedy_output([1, 2, 3], 1), "length")


def test_event_loops_read_beside_threads(service: Service) -> None:
    async def both() -> list[list[int]]:
        async def one(name: str) -> list[int]:
            return [token async for delta in service.submit(request(name)) for token in delta.token_ids]

        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(both()) == [greedy_output([1, 2, 3], 10)] * 2


def test_a_full_queue_says_when_to_come_again(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.02
    streams = [service.submit(request(f"r{i}", 20)) for i in range(4)]
    with pytest.raises(QueueFull, match="4 requests wait or run") as full:
        service.submit(request("more"))
    assert full.value.retry_after_s >= 1.0
    assert all(read(stream)[1] == "length" for stream in streams)
    assert read(service.submit(request("more")))[1] == "length"


def test_who_goes_frees_blocks_at_once(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.01
    stream = service.submit(request("goes", 50))
    stays = service.submit(request("stays", 20))
    next(iter(stream))
    service.abort("goes")
    tokens, reason = read(stream)
    assert reason == "abort" and len(tokens) < 40
    assert read(stays) == (greedy_output([1, 2, 3], 20), "length")
    service.abort("nobody")


def test_one_output_goes_and_the_others_stay(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.01
    stream = service.submit(request("some", 40, num_outputs=2))
    pieces = iter(stream)
    while next(pieces).index != 1:
        pass
    service.abort("some", 1)
    rest = list(pieces)
    assert [each.finish_reason for each in rest if each.index == 1][-1] == "abort"
    assert [each.finish_reason for each in rest if each.index == 0][-1] == "length"
    assert sum(each.index == 0 for each in rest) > sum(each.index == 1 for each in rest)


def test_a_deadline_ends_it(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.01
    stream = service.submit(request("late", 50, deadline_s=service.clock.now_s() + 0.1))
    tokens, reason = read(stream)
    assert reason == "deadline" and 1 <= len(tokens) < 50


def test_what_can_never_be_served_is_refused_at_once(service: Service) -> None:
    with pytest.raises(RequestRefused, match="the model's longest sequence"):
        service.submit(request("long", 100))


def test_after_a_failure_those_who_ran_are_told_and_others_are_served(
    service: Service, started: Started
) -> None:
    started.runners[-1].step_s = 0.01
    stream = service.submit(request("runs", 50))
    next(iter(stream))
    started.runners[-1].failing = ExecutionError("a worker is gone")
    last = list(stream)[-1]
    assert last.finish_reason == "error" and "a worker is gone" in last.error
    assert read(service.submit(request("after"))) == (greedy_output([1, 2, 3], 10), "length")
    assert len(started.runners) == 2 and service.snapshot().num_failures == 1


def test_an_engine_that_fails_again_and_again_is_given_up(service: Service, started: Started) -> None:
    for number in range(MOST_FAILURES):
        started.runners[-1].failing = ExecutionError("broken")
        assert read(service.submit(request(f"r{number}")))[1] == "error"
        until_s = time.monotonic() + 5
        while (
            len(started.runners) == number + 1 and service._thread.is_alive() and time.monotonic() < until_s
        ):
            time.sleep(0.005)
    service._thread.join(5)
    with pytest.raises(Draining):
        service.submit(request("late"))
    assert not service.snapshot().is_ready


def test_draining_takes_nobody_and_waits_for_all(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.01
    stream = service.submit(request("runs", 20))
    assert service.drain(10.0)
    assert read(stream) == (greedy_output([1, 2, 3], 20), "length")
    with pytest.raises(Draining):
        service.submit(request("late"))


def test_draining_ends_who_takes_too_long(service: Service, started: Started) -> None:
    started.runners[-1].step_s = 0.02
    stream = service.submit(request("runs", 50))
    assert not service.drain(0.1)
    assert read(stream)[1] == "abort"


def test_closing_ends_everything(started: Started) -> None:
    service = Service(started)
    started.runners[-1].step_s = 0.02
    stream = service.submit(request("runs", 50))
    service.close()
    assert read(stream)[1] == "abort"
