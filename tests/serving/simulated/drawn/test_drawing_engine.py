"""A simulated engine that answers: every request gets its tokens, when the simulation says, the same for the same seed."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from tests.serving.rest import wait_for_rest
from tests.serving.simulated_case import load, program

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.engine import Engine, NewToken, StepResult
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock, WallClock
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.loop.service import Service
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.drawn.drawing_engine import DrawingEngine
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.step_model import EveryStep

BLOCK_TOKENS, WORDS = 16, tuple(range(100, 120))
LIMITS = Limits(128, 8, 512)


class Heard(RequestLog):
    """A log that keeps every output's tokens and end, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[tuple[str, int], list[NewToken]] = defaultdict(list)
        self.reasons: dict[tuple[str, int], str] = {}
        self.num_cached: dict[str, int] = {}

    def ran(self, result: StepResult) -> None:
        """Note them."""
        super().ran(result)
        for token in result.tokens:
            self.tokens[token.sequence.request.id, token.sequence.output].append(token)
        for ended in result.ended:
            self.reasons[ended.sequence.request.id, ended.sequence.output] = ended.reason
            self.num_cached[ended.sequence.request.id] = ended.sequence.num_cached


def served(
    requests: list[Request], wrapped: Callable[[SimulatedEngine], Engine], num_blocks: int = 200, num_lanes: int = 1
) -> Heard:  # fmt: skip
    scheduler = Scheduler(
        ContinuousBatching(), BlockPool(num_blocks, BLOCK_TOKENS), LIMITS, num_lanes=num_lanes
    )
    steps = EveryStep(program(pp=num_lanes))
    log, engine = Heard(), wrapped(SimulatedEngine(scheduler, steps, num_lanes))
    ServingLoop(scheduler, engine, RecordedArrivals(requests), VirtualClock(), [log]).run()
    assert scheduler.pool.num_held == 0
    return log


def drawing(simulated: SimulatedEngine, mean_output: int = 20) -> DrawingEngine:
    return DrawingEngine(simulated, WORDS, mean_output, BLOCK_TOKENS, lambda: 0.0)


@pytest.mark.parametrize("num_lanes", [1, 2])
def test_steps_end_when_the_simulation_says_and_every_output_is_whole(num_lanes: int) -> None:
    """Also where blocks run out, and sequences have to come back."""
    requests = load(30, per_s=400.0)
    drawn = served(requests, drawing, 60, num_lanes)
    plain = served(load(30, per_s=400.0), lambda simulated: simulated, 60, num_lanes)
    assert sum(each.num_preemptions for each in plain.records)
    ends = [{each.request.id: each.end_s for each in log.records} for log in (drawn, plain)]
    assert ends[0].keys() == ends[1].keys() and len(ends[0]) == 30
    for name, end_s in ends[1].items():
        assert ends[0][name] == pytest.approx(end_s, rel=0.02), name
    for request in requests:
        tokens = [each.token_id for each in drawn.tokens[request.id, 0]]
        assert len(tokens) == request.num_output_tokens and set(tokens) <= set(WORDS)


def test_lengths_are_drawn_where_a_request_lets_its_output_end() -> None:
    requests = [
        Request(f"r{n}", 20, 100, n / 10, sampling=SamplingParameters(ignore_eos=n % 2 == 1)) for n in range(200)
    ]  # fmt: skip
    heard = served(requests, drawing)
    lengths = {name: len(tokens) for (name, _), tokens in heard.tokens.items()}
    assert {lengths[f"r{n}"] for n in range(1, 200, 2)} == {100}
    free = [lengths[f"r{n}"] for n in range(0, 200, 2)]
    assert 15 < statistics.mean(free) < 25 and min(free) < 5 and len(set(free)) > 20
    for request in requests:
        is_full = lengths[request.id] == 100
        assert heard.reasons[request.id, 0] == ("length" if is_full else "stop")


def test_a_seed_says_the_same_again_and_logprobs_are_of_what_is_drawn() -> None:
    seeded = SamplingParameters(seed=5, num_logprobs=3, ignore_eos=True)
    requests = [Request(f"r{n}", 20, 12, n / 1000, num_outputs=2, sampling=seeded) for n in range(2)]
    heard = served(requests, drawing)
    said = {key: [each.token_id for each in tokens] for key, tokens in heard.tokens.items()}
    assert said["r0", 0] == said["r1", 0] != said["r0", 1] == said["r1", 1]
    token = heard.tokens["r0", 0][0]
    assert token.logprob == pytest.approx(-math.log(len(WORDS))) and token.top is not None
    assert np.allclose(token.top.logprobs, token.logprob) and len(token.top.token_ids) == 3


def test_who_goes_on_with_a_conversation_finds_it_computed() -> None:
    """As on a real engine: prompt and output of the turn before, but for what is not a full block."""
    first = Request("one", 32, 33, 0.0, prompt=list(range(32)), sampling=SamplingParameters(ignore_eos=True))
    first.block_keys = keys_of(first)
    heard = Heard()
    scheduler = Scheduler(ContinuousBatching(), BlockPool(200, BLOCK_TOKENS), LIMITS)
    engine = drawing(SimulatedEngine(scheduler, EveryStep(program())))
    clock = VirtualClock()
    ServingLoop(scheduler, engine, RecordedArrivals([first]), clock, [heard]).run()
    spoken = [each.token_id for each in heard.tokens["one", 0]]
    second = Request("two", 70, 2, 1.0, prompt=[*range(32), *spoken, 7, 8, 9, 10, 11], num_output_tokens=2)
    second.block_keys = keys_of(second)
    ServingLoop(scheduler, engine, RecordedArrivals([second]), clock, [heard]).run()
    assert heard.num_cached["two"] == 64 and not engine._drawn and not engine._draws


def keys_of(request: Request) -> tuple[object, ...]:
    assert request.prompt is not None
    return block_keys(request.prompt, BLOCK_TOKENS)


def test_what_the_host_takes_here_is_not_added_to_steps() -> None:
    """A clock that goes on by itself between steps."""

    class Late(VirtualClock):
        def now_s(self) -> float:
            self._now_s += 1e-4
            return self._now_s

    def tpot_s(clock: VirtualClock) -> float:
        scheduler = Scheduler(ContinuousBatching(), BlockPool(200, BLOCK_TOKENS), LIMITS)
        engine, heard = drawing(SimulatedEngine(scheduler, EveryStep(program()))), Heard()
        requests = [Request(f"r{n}", 100, 50, 0.01 * n, num_output_tokens=50) for n in range(4)]
        ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [heard]).run()
        return statistics.mean(each.tpot_s for each in heard.records)

    assert tpot_s(Late()) == pytest.approx(tpot_s(VirtualClock()), rel=0.02)


def test_who_was_ended_while_a_step_ran_leaves_nothing_behind() -> None:
    scheduler = Scheduler(ContinuousBatching(), BlockPool(50, BLOCK_TOKENS), LIMITS)
    engine = drawing(SimulatedEngine(scheduler, EveryStep(program())))
    heard, clock = Heard(), VirtualClock()
    loop = ServingLoop(scheduler, engine, RecordedArrivals([Request("a", 20, 9)]), clock, [heard])
    loop.take_arrivals()
    assert loop.give_out()
    ended: list[Sequence] = loop.end("a", "abort")
    assert len(ended) == 1 and not loop.collect().tokens
    assert not engine._drawn and not engine._draws and scheduler.pool.num_held == 0


def test_a_service_on_the_wall_clock_serves_stages_at_once_and_ends_nobody_twice() -> None:
    """Two stages: a request that comes while a batch is under way goes into the other lane at once."""

    def start(clock: WallClock) -> tuple[Scheduler, DrawingEngine]:
        scheduler = Scheduler(ContinuousBatching(), BlockPool(200, BLOCK_TOKENS), LIMITS, num_lanes=2)
        simulated = SimulatedEngine(scheduler, SlowSteps(), 2)
        return scheduler, DrawingEngine(simulated, WORDS, 20, BLOCK_TOKENS, clock.now_s)

    def served_s() -> float:
        with Service(start) as service:
            began_s = time.monotonic()
            streams = []
            for n in range(2):
                streams.append(service.submit(Request(f"r{n}", 20, 5, prompt=[1] * 20, num_output_tokens=5)))
                time.sleep(0.02)
            ends = [len([token for delta in stream for token in delta.token_ids]) for stream in streams]
            took_s = time.monotonic() - began_s
            state = wait_for_rest(service)
        assert ends == [5, 5] and (state.num_open, state.num_held_blocks) == (0, 0)
        return took_s

    assert served_s() >= 0.5
    # One behind the other it would be a second; a busy machine adds to it, again and again hardly.
    assert any(served_s() < 0.9 for _ in range(5))


class SlowSteps:
    """A tenth of a second, half of it in each of two stages."""

    def step(self, batch: BatchShape) -> StepTime:
        return StepTime(0.1, 0.05)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        raise AssertionError("a step is run alone where somebody waits for its token")
