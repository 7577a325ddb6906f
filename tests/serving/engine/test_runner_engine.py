"""Engines of real models: the same tokens however batches are cut, kept, moved, shared and overlapped."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.covering import covering, product
from tests.serving.case import LIMITS, check_books
from tests.serving.hash_runner import VOCABULARY, HashRunner, PipelinedHashRunner, greedy_output

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.engine import StepResult
from meshwright.serving.engine.runner_engine import MaskOf, RunnerEngine, no_mask
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.batch_lane import BatchLane
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.request.sampling_parameters import GREEDY, SamplingParameters
from meshwright.serving.sampling.inverse_draw import NO_TOKEN
from meshwright.specs.error import SpecError

BLOCK_TOKENS = 4


class Outputs:
    """What every output got, in order."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.reasons: dict[tuple[str, int], str] = {}

    def arrived(self, request: Request, now_s: float) -> None:
        """Nothing yet."""

    def refused(self, request: Request, now_s: float, why: Exception) -> None:
        """Nobody is, here."""
        raise AssertionError(why)

    def given_out(self, batch: Batch, now_s: float) -> None:
        """Nothing yet."""

    def left(self, sequence: object, now_s: float, reason: str) -> None:
        """Nobody is ended."""

    def ran(self, result: StepResult) -> None:
        """Tokens."""
        for token in result.tokens:
            name = (token.sequence.request.id, token.sequence.output)
            self.tokens.setdefault(name, []).extend([token.token_id] if token.token_id != NO_TOKEN else [])
        for ended in result.ended:
            name = (ended.sequence.request.id, ended.sequence.output)
            self.reasons[name] = ended.reason
            assert ended.num_tokens == len(self.tokens[name])


def requests_of(
    seed: int, num: int, num_outputs: int, sampling: SamplingParameters = GREEDY
) -> list[Request]:
    """Prompts that begin alike."""
    draw = random.Random(seed)
    base = [draw.randrange(VOCABULARY) for _ in range(20)]
    requests = []
    for number in range(num):
        prompt = base[: draw.randint(0, 12)] + [
            draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 10))
        ]
        keys = block_keys(prompt, BLOCK_TOKENS)
        requests.append(
            Request(
                f"r{number}",
                len(prompt),
                draw.randint(1, 20),
                0.0,
                prompt,
                block_keys=keys,
                sampling=sampling,
                num_outputs=draw.randint(1, num_outputs),
                priority=draw.randrange(2),
            )  # fmt: skip
        )
    return requests


def said(
    requests: list[Request],
    policy: ContinuousBatching,
    num_blocks: int,
    depth: int,
    end_ids: tuple[int, ...] = (),
    mask_of: MaskOf = no_mask,
    num_lanes: int = 1,
    starts: bool = False,
) -> Outputs:
    """What an engine says."""
    host = 16 if policy.preemption == "swap" else 0
    runner = HashRunner(num_blocks, BLOCK_TOKENS, host)
    if num_lanes > 1 or starts:
        runner = PipelinedHashRunner(num_blocks, BLOCK_TOKENS, host, num_lanes)
    clock, outputs = VirtualClock(), Outputs()
    pool, host_pool = (
        BlockPool(num_blocks, BLOCK_TOKENS),
        BlockPool(host, BLOCK_TOKENS) if host else None,
    )
    scheduler = Scheduler(policy, pool, LIMITS, host_pool, num_lanes)
    engine = RunnerEngine(runner, clock.now_s, end_ids, depth, mask_of)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    check_books(scheduler)
    assert scheduler.pool.num_held == 0 and not engine._row_of
    assert num_lanes == 1 or num_blocks < 40 or runner.most_under_way == num_lanes
    engine.close()
    return outputs


ROWS = list(
    product(
        {
            "is_chunked": (True, False),
            "preemption": ("recompute", "swap"),
            "num_blocks": (11, 40),
            "depth": (1, 2),
            "num_lanes": (1, 2, 3),
            "num_outputs": (1, 3),
        }
    )
)


@pytest.mark.parametrize(
    "case", [ROWS[number] for number in covering(ROWS)], ids=lambda case: "-".join(map(str, case.values()))
)
def test_every_way_says_what_obvious_code_says(case: dict[str, int]) -> None:
    policy = ContinuousBatching(
        is_chunked=bool(case["is_chunked"]), preemption=str(case["preemption"]), watermark=0.0
    )
    for seed in range(6):
        requests = requests_of(seed, 12, case["num_outputs"])
        if not policy.is_chunked:
            requests = [each for each in requests if each.num_prompt_tokens <= LIMITS.max_batch_tokens]
        outputs = said(requests, policy, case["num_blocks"], case["depth"], num_lanes=case["num_lanes"])
        for request in requests:
            expected = greedy_output(request.prompt or (), request.max_output_tokens)
            for output in range(request.num_outputs):
                assert outputs.tokens[request.id, output] == expected, (seed, request)
                assert outputs.reasons[request.id, output] == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_runner_that_could_start_steps_and_has_one_lane_is_told_tokens_that_are_there(depth: int) -> None:
    requests = requests_of(4, 12, 1)
    outputs = said(requests, ContinuousBatching(), 40, depth, starts=True)
    for request in requests:
        assert outputs.tokens[request.id, 0] == greedy_output(request.prompt or (), request.max_output_tokens)


@pytest.mark.parametrize(("depth", "num_lanes"), [(1, 1), (2, 1), (1, 2)])
def test_an_end_of_text_ends_it_and_is_its_last_token(depth: int, num_lanes: int) -> None:
    requests = requests_of(3, 12, 1)
    ends = (3, 4, 5, 6, 7, 8)
    outputs = said(requests, ContinuousBatching(), 40, depth, ends, num_lanes=num_lanes)
    num_stopped = 0
    for request in requests:
        expected = greedy_output(request.prompt or (), request.max_output_tokens)
        places = [place for place, token in enumerate(expected) if token in ends]
        cut = expected[: places[0] + 1] if places else expected
        assert outputs.tokens[request.id, 0] == cut
        assert outputs.reasons[request.id, 0] == ("stop" if places else "length")
        num_stopped += bool(places)
    assert num_stopped > 3


def test_a_seed_draws_the_same_tokens_whatever_the_batch() -> None:
    sampling = SamplingParameters(temperature=0.9, top_p=0.9, seed=11)
    together = said(requests_of(5, 10, 2, sampling), ContinuousBatching(), 12, 2)
    for request in requests_of(5, 10, 2, sampling):
        alone = said([request], ContinuousBatching(is_chunked=False), 40, 1)
        for output in range(request.num_outputs):
            assert alone.tokens[request.id, output] == together.tokens[request.id, output]
    pairs = [
        (r.id, 0) for r in requests_of(5, 10, 2, sampling) if r.num_outputs == 2 and r.max_output_tokens > 5
    ]
    assert pairs and any(together.tokens[name, 0] != together.tokens[name, 1] for name, _ in pairs)


class Counted:
    """A mask that allows one token a few times, then an end, or nothing."""

    def __init__(self, token: int, times: int, end: int | None) -> None:
        self.tokens, self.end = [token] * times, end

    def allowed(self) -> np.ndarray:
        """The next."""
        return np.arange(VOCABULARY) == (self.tokens[0] if self.tokens else self.end)

    def accept(self, token_id: int) -> None:
        """It came."""
        del self.tokens[:1]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("end", "reason"), [(9, "stop"), (None, "error")])
def test_an_output_under_a_mask_ends_as_the_mask_does(depth: int, end: int | None, reason: str) -> None:
    """Where a grammar gives up, what was said does not match it: that is no ordinary end."""
    sampling = SamplingParameters(temperature=0.0, grammar="7777")
    request = Request("r", 3, 20, prompt=[1, 2, 3], sampling=sampling)
    outputs = said([request], ContinuousBatching(), 40, depth, (9,), lambda _: Counted(7, 4, end))
    assert outputs.reasons["r", 0] == reason
    assert outputs.tokens["r", 0] == [7] * 4 + ([9] if end else [])


@pytest.mark.parametrize(
    "wrong", [{"num_logprobs": 99}, {"logit_bias": ((VOCABULARY, 1.0),)}, {"grammar": "bad"}]
)
def test_a_request_that_cannot_be_sampled_fails_alone(wrong: dict[str, object]) -> None:
    """Whoever checks requests let it through; the engine and those beside it go on."""

    def mask_of(parameters: SamplingParameters) -> None:
        if parameters.grammar:
            raise SpecError("the grammar cannot be used")

    requests = requests_of(7, 6, 1)
    bad = Request("bad", 3, 20, prompt=[1, 2, 3], sampling=SamplingParameters(**wrong))
    outputs = said([*requests, bad], ContinuousBatching(), 40, 2, (), mask_of)
    assert outputs.reasons["bad", 0] == "error" and outputs.tokens["bad", 0] == []
    for request in requests:
        assert outputs.tokens[request.id, 0] == greedy_output(request.prompt or (), request.max_output_tokens)


class AllLeaveOnce(ContinuousBatching):
    """Before the second step everybody who decodes is swapped out, and may come back in that very step."""

    def choose(self, now_s: float, scheduler: Scheduler, lane: BatchLane) -> bool:
        """As usual, but for that."""
        if scheduler.batch.number == 1:
            for sequence in list(lane.decoding):
                scheduler.preempt(sequence, swaps=True)
        return super().choose(now_s, scheduler, lane)


def test_a_fork_copies_from_who_comes_back_in_the_same_step() -> None:
    prompt = [5, 6, 7, 8, 9, 10]
    request = Request("r", len(prompt), 8, prompt=prompt, num_outputs=3)
    outputs = said([request], AllLeaveOnce(preemption="swap"), 40, 1)
    assert [outputs.tokens["r", output] for output in range(3)] == [greedy_output(prompt, 8)] * 3


class ChangesLanes(ContinuousBatching):
    """Once in a while a lane takes a sequence from another, whose step is under way."""

    num_taken = 0

    def choose(self, now_s: float, scheduler: Scheduler, lane: BatchLane) -> bool:
        """As usual, but for that."""
        others = [each for other in scheduler.lanes if other is not lane for each in other.decoding]
        if scheduler.batch.number % 3 == 2 and others:
            scheduler.preempt(others[0], swaps=self.preemption == "swap")
            type(self).num_taken += 1
        return super().choose(now_s, scheduler, lane)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_who_changes_lanes_goes_on_with_the_token_of_the_step_under_way(preemption: str) -> None:
    requests = requests_of(4, 12, 1)
    outputs = said(requests, ChangesLanes(preemption=preemption), 40, 1, num_lanes=2)
    assert ChangesLanes.num_taken > 3
    for request in requests:
        assert outputs.tokens[request.id, 0] == greedy_output(request.prompt or (), request.max_output_tokens)


class AdapterRunner(HashRunner):
    """Keeps which adapters its steps were given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, ...]] = []
        self.dropped: list[int] = []

    def load_adapter(self, folder: Path) -> int:
        """Always the same."""
        return 3

    def drop_adapter(self, number: int) -> None:
        """Note it."""
        self.dropped.append(number)

    def forward(self, inputs):  # type: ignore[no-untyped-def]
        """Note them."""
        self.given.append(tuple(inputs.adapters))
        return super().forward(inputs)


def test_adapters_come_while_it_runs_and_one_that_is_not_there_fails_alone() -> None:
    runner, clock, outputs, adapters = AdapterRunner(), VirtualClock(), Outputs(), ServedAdapters(1)
    adapters.attach(runner)
    scheduler = Scheduler(ContinuousBatching(), BlockPool(40, BLOCK_TOKENS), LIMITS)
    engine = RunnerEngine(runner, clock.now_s, adapters=adapters)
    adapters.load("mine", Path("a folder"))
    mine = adapters.key_of("mine")
    requests = [
        Request(name, 3, 4, prompt=[1, 2, 3], adapter=adapter)
        for name, adapter in (("own", ""), ("adapted", mine), ("lost", "gone"))
    ]
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    assert runner.given[0] == (0, 3, 0) and runner.given[1][:2] == (0, 3)
    assert outputs.reasons == {("own", 0): "length", ("adapted", 0): "length", ("lost", 0): "error"}
    assert not engine._adapted and runner.dropped == []
    adapters.unload("mine")
    assert runner.dropped == [3]
