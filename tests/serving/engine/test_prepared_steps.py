"""Steps that are prepared while another runs: the same tokens as one by one, whatever is drawn, moved or broken."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.serving.case import LIMITS, check_books
from tests.serving.engine.test_runner_engine import BLOCK_TOKENS, Outputs, requests_of
from tests.serving.hash_runner import (
    VOCABULARY,
    BreakingHashRunner,
    HashRunner,
    PreparingBreakingHashRunner,
    PreparingHashRunner,
    greedy_output,
)

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.engine import StepResult
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.engine.running_rows import LateTokens
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters

KINDS = (
    GREEDY,
    SamplingParameters(temperature=0.9, seed=5),
    SamplingParameters(temperature=0.8, top_p=0.8, seed=6, num_logprobs=2),
    SamplingParameters(temperature=0.0, num_logprobs=1),
    SamplingParameters(temperature=0.0, frequency_penalty=0.5),
)
NUM_HOST_BLOCKS = 16


class OneRoomHashRunner(HashRunner):
    """Its logits are valid until the next call, and no longer."""

    def __init__(self, num_blocks: int = 40, block_tokens: int = 4, num_host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_tokens, num_host_blocks)
        self._room = np.empty((256, VOCABULARY), np.float32)

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """In the same memory every time."""
        self._room.fill(np.nan)
        found = self._room[: len(inputs.rows)]
        found[...] = super().forward(inputs)
        return found


class AllOutputs(Outputs):
    """What is told beside tokens, too."""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: dict[tuple[str, int], list[float]] = {}

    def ran(self, result: StepResult) -> None:
        """And log-probabilities."""
        super().ran(result)
        for token in result.tokens:
            name = (token.sequence.request.id, token.sequence.output)
            self.logprobs.setdefault(name, []).append(token.logprob)


def said(
    runner: HashRunner,
    requests: list[Request],
    depth: int,
    end_ids: tuple[int, ...] = (),
    num_blocks: int = 40,
    preemption: str = "swap",
) -> AllOutputs:
    """What an engine says on this runner."""
    clock, outputs = VirtualClock(), AllOutputs()
    pool, host = BlockPool(num_blocks, BLOCK_TOKENS), BlockPool(NUM_HOST_BLOCKS, BLOCK_TOKENS)
    policy = ContinuousBatching(preemption=preemption, watermark=0.0)
    scheduler = Scheduler(policy, pool, LIMITS, host if preemption == "swap" else None)
    engine = RunnerEngine(runner, clock.now_s, end_ids, depth)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    check_books(scheduler)
    assert scheduler.pool.num_held == 0 and not engine._row_of and not engine._ended
    engine.close()
    return outputs


def mixed(seed: int, kinds: tuple[SamplingParameters, ...] = KINDS) -> list[Request]:
    """Requests of which each wants its tokens drawn in one of these ways."""
    requests = requests_of(seed, 12, 2)
    return [replace(request, sampling=kinds[number % len(kinds)]) for number, request in enumerate(requests)]


@pytest.mark.parametrize("kinds", [(GREEDY,), KINDS], ids=["greedy", "mixed"])
@pytest.mark.parametrize(("num_blocks", "preemption"), [(40, "swap"), (11, "swap"), (11, "recompute")])
def test_prepared_steps_say_what_steps_one_by_one_say(
    kinds: tuple[SamplingParameters, ...], num_blocks: int, preemption: str
) -> None:
    """With ends by tokens, too: who has ended is in the step that is prepared, and his row waits for that."""
    for seed, ends in enumerate([(), (3, 4, 5, 6), (7, 8, 9)]):
        one_by_one, *others = (
            said(kind(num_blocks, BLOCK_TOKENS, NUM_HOST_BLOCKS), mixed(seed, kinds), depth, ends, num_blocks, preemption)
            for kind, depth in ((HashRunner, 1), (OneRoomHashRunner, 2), (PreparingHashRunner, 1), (PreparingHashRunner, 2))
        )  # fmt: skip
        for other in others:
            assert other.tokens == one_by_one.tokens and other.reasons == one_by_one.reasons
            np.testing.assert_equal(other.logprobs, one_by_one.logprobs)


@pytest.mark.parametrize("kinds", [(GREEDY,), KINDS], ids=["greedy", "mixed"])
@pytest.mark.parametrize("depth", [1, 2])
def test_who_has_logits_that_are_no_numbers_fails_alone(
    kinds: tuple[SamplingParameters, ...], depth: int
) -> None:
    requests = mixed(2, kinds)
    plain = said(BreakingHashRunner(), requests, 1)
    found = said(PreparingBreakingHashRunner(), requests, depth)
    assert found.tokens == plain.tokens and found.reasons == plain.reasons
    assert {"error", "length"} == set(found.reasons.values())
    for request in (each for each in requests if each.sampling is GREEDY):
        whole = greedy_output(request.prompt or (), request.max_output_tokens)
        is_broken = 3 in whole[:-1] or (request.prompt or ())[-1] == 3
        assert found.reasons[request.id, 0] == ("error" if is_broken else "length")


def test_a_runner_that_fails_is_told_of_once_and_ends_the_steps_behind() -> None:
    runner, clock = PreparingHashRunner(), VirtualClock()
    scheduler = Scheduler(ContinuousBatching(), BlockPool(40, BLOCK_TOKENS), LIMITS)
    engine = RunnerEngine(runner, clock.now_s, depth=2)
    scheduler.add(Request("r", 3, 9, prompt=[1, 2, 3]))
    runner.failing = RuntimeError("the device is gone")
    for _ in range(2):
        batch = scheduler.next(0.0, 0)
        assert batch is not None
        engine.submit(batch, 0.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.poll()
    assert runner.num_forwards == 1, "a step whose tokens never came was computed"
    engine.close()


def test_an_engine_that_nobody_has_any_more_goes_and_takes_its_thread_with_it() -> None:
    before = set(threading.enumerate())
    engine = RunnerEngine(HashRunner(), VirtualClock().now_s, depth=2)
    (thread,) = set(threading.enumerate()) - before
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    thread.join(10.0)
    assert gone() is None and not thread.is_alive()


def test_late_tokens_are_slices_only_where_they_stand_in_a_row() -> None:
    dice = random.Random(0)
    for _ in range(200):
        num = dice.randint(1, 5)
        places = np.array(sorted(dice.sample(range(8), num)))
        sources = np.array(dice.sample(range(8), num))
        late, drawn = LateTokens.at(places, sources), np.arange(8) * 10
        found, expected = np.full(8, -1), np.full(8, -1)
        found[late.places] = drawn[late.sources]
        for place, source in zip(places, sources, strict=True):
            expected[place] = drawn[source]
        np.testing.assert_array_equal(found, expected)
    late = LateTokens.at(np.arange(2, 5), np.array([2, 1, 0]))
    assert late.places == slice(2, 5) and not isinstance(late.sources, slice)
