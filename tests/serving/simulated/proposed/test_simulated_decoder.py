"""Proposals on paper: how many are accepted, what verifying them takes, and what a plan with a decoder promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.serving.simulated_case import load, of_8b, program

import meshwright as mw
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.decoder.ngram import NGram
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.proposed.simulated_decoder import SimulatedDecoder
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.step_model import EveryStep
from meshwright.specs.error import PlanError

LOAD = [Request("a", 40, 33, 0.0, num_output_tokens=33), Request("b", 90, 60, 0.1, num_output_tokens=60)]
ALONE = {"tp": 2, "replicas": 1}


def served(requests: list[Request], decoder: SimulatedDecoder, num_blocks: int = 400) -> RequestLog:
    """A load, and nothing is held behind it."""
    pool, log = BlockPool(num_blocks, 16), RequestLog()
    scheduler = Scheduler(ContinuousBatching(), pool, Limits(256, 32, 1024), None, 1, decoder.num_tokens)
    engine = SimulatedEngine(scheduler, EveryStep(program()), 1, decoder)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), VirtualClock(), [log]).run()
    pool.check()
    assert pool.num_held == 0 and not scheduler.num_running
    return log


@pytest.mark.parametrize("acceptance", [0.3, 0.8, 1.0])
def test_each_behind_accepted_ones_is_accepted_by_the_share(acceptance: float) -> None:
    decoder = SimulatedDecoder(4, acceptance)
    sequences = [Sequence(LOAD[0], 0, order) for order in range(60)]
    found = np.array([decoder.num_accepted(each, length, 4) for each in sequences for length in range(50)])
    for number in range(1, 5):  # 3,000 draws: 3.5 deviations
        share = acceptance**number
        assert abs((found >= number).mean() - share) <= 3.5 * np.sqrt(share * (1 - share) / len(found))


def test_outputs_have_their_tokens_in_as_many_steps_as_it_takes() -> None:
    """Of one request with everything accepted: a step for the prompt, then 4 tokens a step."""
    log = served([LOAD[0]], SimulatedDecoder(3, 1.0))
    assert log.records[0].num_tokens == 33 and len(log.steps.end_s) == 1 + 32 // 4
    for num_blocks in (40, 400):  # few: some have to leave, some find no room for proposals
        requests = load(60, 200.0)
        log = served(requests, SimulatedDecoder(3, 0.6), num_blocks)
        assert [each.num_tokens for each in log.records] == [each.max_output_tokens for each in requests]


def test_proposals_cost_rows_and_no_read_of_keys_more() -> None:
    steps, one = EveryStep(of_8b()), SimulatedDecoder(4, 0.5)
    seconds = {
        (number, num): one.step(steps, BatchShape.of((), number, number * 1000), num).latency_s
        for number in (1, 256) for num in (0, 4)
    }  # fmt: skip
    assert 1.0 < seconds[1, 4] / seconds[1, 0] < 1.05  # weights are read once
    assert 1.3 < seconds[256, 4] / seconds[256, 0] < 5.0  # products are what takes time
    with_draft = replace(one, draft=EveryStep(program()))
    drafts = 4 * program().step(BatchShape.of((), 1, 1000)).latency_s
    found = with_draft.step(steps, BatchShape.of((), 1, 1000), 4).latency_s
    assert found == pytest.approx(seconds[1, 4] + drafts)


def test_a_plan_with_a_decoder_says_what_it_gains() -> None:
    said = {
        decoder: mw.plan_load("llama-3.1-8b", "2xH100", LOAD, fix={**ALONE, "decoder": decoder}, step_table=False)
        for decoder in (
            "one_token", "ngram(tokens=4, acceptance=0.7)", "draft(model='llama-3.2-1b', tokens=4, acceptance=0.7)"
        )
    }  # fmt: skip
    assert [sum("probability 0.7" in line for line in each.assumptions) for each in said.values()] == [
        0,
        1,
        1,
    ]
    plain, ngram, draft = (each[0] for each in said.values())
    tokens = sum(0.7**number for number in range(5))  # of a step, in the mean
    gain = plain.report.tpot_s["p50"] / ngram.report.tpot_s["p50"]
    assert 0.75 * tokens < gain < 1.25 * tokens  # two short outputs
    assert 1.0 < plain.report.tpot_s["p50"] / draft.report.tpot_s["p50"] < gain
    assert draft.num_blocks < 0.9 * plain.num_blocks == 0.9 * ngram.num_blocks
    assert "ngram(tokens=4" in ngram.plan.name


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"decoder": "ngram"}, "how much is accepted is not told"),
        ({"decoder": "medusa"}, "medusa"),
        ({"decoder": "draft(model='llama-3.2-1b', acceptance=0.7)", "pp": 2, "tp": 1}, "beside a pipeline"),
    ],
)
def test_what_cannot_be_simulated_is_refused(fix: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        mw.plan_load("llama-3.1-8b", "2xH100", LOAD, fix={**ALONE, **fix})
    with pytest.raises(PlanError, match=r"spec_decode_num_accepted"):
        SimulatedDecoder.of(NGram())
