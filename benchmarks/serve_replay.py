"""A real run of the serving loop decided again in virtual time: the same decisions, and steps that take as long.

    python benchmarks/serve_replay.py [--model FOLDER] [--requests 40] [--rate 4] [--dtype float32] [--clock wall]

A Llama of random weights (or the model of --model) serves drawn requests that arrive at random times, with torch. The run is
recorded, and so are two of other loads, one before and one behind it, on whose steps the costs of a step are fitted; then the
run is served again by the simulated engine. With `--clock cpu` (one thread) time is what the process computes, and nobody
waits for requests: other work on the machine then slows steps down by caches and clocks only, not by its turns.

One JSON line: whether all decisions are the same, in the same order; the median and 90th percentile of how far off the
seconds of steps are; the same of the null, which takes every step for as long as the median of the other loads'; and the
seconds of all steps, simulated over measured.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from meshwright import __version__
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner import Runner
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import Clock, VirtualClock, WallClock
from meshwright.serving.loop.run_record import RunRecord, replay
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.watched_steps import WatchedSteps, watched_steps

SIZES = {
    "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip
NUM_BLOCKS, BLOCK_TOKENS = 512, 16
LIMITS = Limits(max_batch_tokens=256, max_sequences=32, max_model_tokens=2048)


def drawn_requests(num: int, rate_per_s: float, vocabulary_size: int, seed: int) -> list[Request]:
    """Poisson arrivals; prompts of 16 to 400 tokens, outputs of 8 to 80."""
    draw, now_s, requests = random.Random(seed), 0.0, []
    for number in range(num):
        now_s += draw.expovariate(rate_per_s)
        prompt = [draw.randrange(vocabulary_size) for _ in range(draw.randint(16, 400))]
        requests.append(Request(f"r{number}", len(prompt), draw.randint(8, 80), now_s, prompt))
    return requests


def scheduler() -> Scheduler:
    """The same for both."""
    return Scheduler(ContinuousBatching(), BlockPool(NUM_BLOCKS, BLOCK_TOKENS), LIMITS)


class CpuClock:
    """Seconds that this process computed, and those that it was told to wait."""

    def __init__(self) -> None:
        self._waited_s = -time.process_time()

    def now_s(self) -> float:
        """What time it is."""
        return self._waited_s + time.process_time()

    def reach(self, time_s: float) -> None:
        """Wait until then, without waiting."""
        self._waited_s += max(0.0, time_s - self.now_s())


def recorded_run(runner: Runner, requests: list[Request], clock: Clock) -> RunRecord:
    """What the real engine did."""
    record = RunRecord()
    engine = RunnerEngine(runner, clock.now_s)
    ServingLoop(scheduler(), engine, RecordedArrivals(requests), clock, [record]).run()
    return record


CLOCKS: Mapping[str, Callable[[], Clock]] = {"wall": WallClock, "cpu": CpuClock}


def misses(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:  # type: ignore[type-arg]
    """How far off each step is."""
    off = np.abs(predicted / measured - 1.0)
    return {"median": round(float(np.median(off)), 4), "p90": round(float(np.quantile(off, 0.9)), 4)}


def compared(before: RunRecord, record: RunRecord, behind: RunRecord) -> dict[str, object]:
    """A run beside its replay, with the costs of two others."""
    known, at = [*watched_steps(before), *watched_steps(behind)], scheduler()
    steps = WatchedSteps.of(known)
    again = replay(record, at, SimulatedEngine(at, steps), VirtualClock())
    measured = np.array([seconds for _, seconds in watched_steps(record)])
    predicted = np.array([step.end_s - step.start_s for step in again.steps])
    null = np.full(len(measured), np.median([seconds for _, seconds in known]))
    return {
        "meshwright": __version__, "num_steps": len(measured),
        "same_decisions": [step.decision for step in again.steps] == [step.decision for step in record.steps],
        "step_off": misses(predicted, measured), "null_off": misses(null, measured),
        "seconds_ratio": round(float(predicted.sum() / measured.sum()), 4),
    }  # fmt: skip


def main() -> None:
    """Serve, replay, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    asked = parser.parse_args()
    if asked.clock == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        if not asked.model:
            LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(made)
        options = RunnerOptions(dtype=asked.dtype, num_blocks=NUM_BLOCKS, block_tokens=BLOCK_TOKENS)
        runner = TorchRunner(open_served(Path(asked.model or made)), options)
        runs = [
            recorded_run(
                runner,
                drawn_requests(asked.requests, asked.rate, runner.vocabulary_size, seed),
                CLOCKS[asked.clock](),
            )
            for seed in (1, 2, 3)
        ]
        runner.close()
        print(json.dumps(compared(*runs)))


if __name__ == "__main__":
    main()
