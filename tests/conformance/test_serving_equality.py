"""Served greedily, a model says what transformers says: token for token, however its requests are batched, cut, preempted,
swapped, shared and forked, on every engine."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.serving.block.block_key import block_keys
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.decoder.draft import DraftProposer
from meshwright.serving.decoder.ngram import NGramProposer
from meshwright.serving.engine.proposer import Proposer
from meshwright.serving.engine.runner import Runner
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.engine.speculating_engine import SpeculatingEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.specs.error import SpecError
from tests.covering import covering, product
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, VOCABULARY, their_logits, their_model
from tests.serving.case import check_books
from tests.serving.engine.test_runner_engine import Outputs

TOKENS, OUTPUT_TOKENS = (
    30,
    24,
)  # the longest prompt, times the size of a runner's blocks over that of torch's, and output
NUM_HOST_BLOCKS = 24
NUM_BLOCKS = 200
NUM_PROPOSED = 3
ROUNDING = 1e-5  # of logits of about one in float32


def openvino_runner(folder: Path, num_blocks: int, num_host_blocks: int) -> Runner:
    """In this process, float32."""
    pytest.importorskip("openvino", reason="openvino is the extra `serve-cpu`")
    runner = importlib.import_module("meshwright.serving.openvino.runner")
    options = runner.OpenVinoOptions(
        precision="float32", num_blocks=num_blocks, num_host_blocks=num_host_blocks
    )
    try:
        made: Runner = runner.OpenVinoRunner(folder, options)
    except SpecError as error:
        pytest.skip(f"refused: {error}")
    return made


def torch_runner(folder: Path, num_blocks: int, num_host_blocks: int, tp: int = 1, pp: int = 1) -> Runner:
    """float32; in this process, or on several ranks."""
    options = RunnerOptions(
        dtype="float32",
        block_tokens=BLOCK_TOKENS,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        tp=tp,
        pp=pp,
    )
    return (TorchRunner if options.num_ranks == 1 else ParallelRunner)(open_served(folder), options)


RUNNERS: dict[str, Callable[[Path, int, int], Runner]] = {"torch": torch_runner, "openvino": openvino_runner}
# Each of these has processes to start: they are given the many prompts only.
PARALLEL = {"torch tp=2": partial(torch_runner, tp=2), "torch pp=2": partial(torch_runner, pp=2)}
WAYS = list(
    product(
        {
            "is_chunked": (True, False),
            "preemption": ("recompute", "swap"),
            "is_tight": (True, False),
            "depth": (1, 2),
        }
    )
)


def stretch_of(runner: Runner) -> int:
    """How much longer prompts are, for engines whose blocks have a size of their own."""
    return max(1, runner.block_tokens // (2 * BLOCK_TOKENS))


def requests_of(runner: Runner, num: int, seed: int) -> list[Request]:
    """Prompts of 1 to 30 tokens (or several times that), some with a common beginning, some for two outputs."""
    draw = random.Random(seed)
    stretch = stretch_of(runner)
    common = [draw.randrange(VOCABULARY) for _ in range(16 * stretch)]
    requests = []
    for number in range(num):
        prompt = common[: stretch * draw.choice((0, 0, 9, 16))] + [
            draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 14))
        ]
        keys = block_keys(prompt, runner.block_tokens)
        requests.append(
            Request(
                f"r{number}",
                len(prompt),
                draw.randint(4, OUTPUT_TOKENS),
                prompt=prompt,
                block_keys=keys,
                num_outputs=1 + (number % 5 == 0),
            )
        )
    return requests


def said(
    runner: Runner, requests: list[Request], way: dict[str, Any], proposer: Proposer | None = None
) -> Outputs:
    """What the loop's engine says, with a decoder's proposals or without."""
    policy = ContinuousBatching(is_chunked=way["is_chunked"], preemption=way["preemption"], watermark=0.0)
    size, most = runner.block_tokens, stretch_of(runner) * TOKENS + OUTPUT_TOKENS
    host = BlockPool(runner.num_host_blocks, size) if way["preemption"] == "swap" else None
    num_blocks = 2 * -(-most // size) if way["is_tight"] else runner.num_blocks
    limits = Limits(max_batch_tokens=stretch_of(runner) * 32, max_sequences=12, max_model_tokens=most)
    clock, outputs = VirtualClock(), Outputs()
    if proposer is None:
        engine = RunnerEngine(runner, clock.now_s, depth=way["depth"])
    else:
        engine = SpeculatingEngine(runner, proposer, clock.now_s)
    num_proposed = 0 if proposer is None else NUM_PROPOSED
    scheduler = Scheduler(policy, BlockPool(num_blocks, size), limits, host, engine.num_lanes, num_proposed)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock, [outputs]).run()
    check_books(scheduler)
    assert scheduler.pool.num_held == 0
    return outputs


def check_greedy(model: Any, requests: list[Request], outputs: Outputs) -> None:
    """One forward of prompt and output: each token is the most probable one behind those before it, or as probable as that
    one: of thousands of tokens there may be two that float32 does not tell apart, and batches are rounded as they are."""
    for request in requests:
        for number in range(request.num_outputs):
            tokens = outputs.tokens[request.id, number]
            assert len(tokens) == request.max_output_tokens
            prompt = list(request.prompt or ())
            logits_OV = their_logits(model, prompt + tokens)[len(prompt) - 1 : -1]
            chosen_O = logits_OV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert float((logits_OV.amax(1) - chosen_O).max()) < ROUNDING, (request.id, number)


@pytest.mark.parametrize("engine", RUNNERS)
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in ("qwen3", "mistral") else pytest.mark.slow) for name in FAMILIES],
)
def test_every_way_of_serving_says_what_transformers_says(family: str, engine: str, tmp_path: Path) -> None:
    model = their_model(FAMILIES[family], tmp_path)
    runner = RUNNERS[engine](tmp_path, NUM_BLOCKS, NUM_HOST_BLOCKS)
    for seed, number in enumerate(covering(WAYS)):
        requests = requests_of(runner, 8, seed)
        check_greedy(model, requests, said(runner, requests, WAYS[number]))
    runner.close()


@pytest.mark.parametrize("engine", RUNNERS)
@pytest.mark.parametrize("decoder", ["ngram", "draft"])
def test_proposals_change_no_token(decoder: str, engine: str, tmp_path: Path) -> None:
    """The model itself is the draft: what it proposes is accepted, and steps verify several tokens of many sequences."""
    model = their_model(FAMILIES["qwen3"], tmp_path)
    runner = RUNNERS[engine](tmp_path, NUM_BLOCKS, NUM_HOST_BLOCKS)
    for preemption, is_tight in (("recompute", False), ("swap", True)):
        drafting = RUNNERS[engine](tmp_path, NUM_BLOCKS, 0) if decoder == "draft" else None
        proposer = DraftProposer(drafting, VOCABULARY) if drafting else NGramProposer(2, 1)
        requests = requests_of(runner, 8, 3)
        way = {"is_chunked": True, "preemption": preemption, "is_tight": is_tight}
        check_greedy(model, requests, said(runner, requests, way, proposer))
        proposer.close()
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("engine", RUNNERS | PARALLEL)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_hundred_prompts(family: str, engine: str, tmp_path: Path) -> None:
    model = their_model(FAMILIES[family], tmp_path)
    runner = (RUNNERS | PARALLEL)[engine](tmp_path, NUM_BLOCKS, NUM_HOST_BLOCKS)
    requests = requests_of(runner, 200, 99)
    way = {"is_chunked": True, "preemption": "swap", "is_tight": True, "depth": 2}
    check_greedy(model, requests, said(runner, requests, way))
    runner.close()
