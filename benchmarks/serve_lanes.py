"""A pipeline that serves, with a batch on every stage against one batch at a time: seconds a token, in pairs.

    python benchmarks/serve_lanes.py [--pairs 11] [--layers 8] [--sequences 16]

Two stages, a process and a thread each, serve the same requests of random tokens twice a pair, in turns: once with a lane a
stage (half of the sequences each), once with one lane of all. One lane leaves one of two processes idle at any time; two read
every weight twice as often. Told are ratios of tokens a second as they passed, which on cores that others use say little, and
as they would be with a core for each stage: of one lane the CPU seconds of both stages count, of two those of the busier one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from meshwright.executor.models.weights.hugging_face import save_hugging_face
from meshwright.executor.models.weights.initialisation import initial_value
from meshwright.executor.models.weights.parameter_map import parameter_shapes
from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.runner import Runner, StepInputs, num_lanes_of
from meshwright.serving.engine.runner_engine import RunnerEngine
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.specs.model.model import ModelSpec

OPTIONS = RunnerOptions(dtype="float32", num_blocks=512, max_model_tokens=256, num_threads=1, pp=2)
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 32


class OneLane:
    """A runner of a pipeline that has one step under way, packed while the one before runs."""

    def __init__(self, runner: ParallelRunner) -> None:
        self._runner = runner
        self.block_tokens, self.num_blocks = runner.block_tokens, runner.num_blocks
        self.num_host_blocks, self.vocabulary_size = runner.num_host_blocks, runner.vocabulary_size
        self.max_model_tokens, self.move_blocks = runner.max_model_tokens, runner.move_blocks

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """One after the other."""
        return self._runner.forward(inputs)

    def close(self) -> None:
        """The runner is used again."""


class Rates(NamedTuple):
    """Tokens a second: as they passed, and by the CPU seconds of both stages or of the busier one."""

    passed: float
    in_turns: float
    beside: float


def cpu_s(process: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rates(runner: Runner, processes: tuple[int, ...], num_sequences: int) -> Rates:
    """Of twice as many requests as run at once."""
    draw = np.random.default_rng(0)
    prompts = draw.integers(0, 256, (2 * num_sequences, PROMPT_TOKENS)).tolist()
    requests = [
        Request(f"{number}", PROMPT_TOKENS, OUTPUT_TOKENS, prompt=prompt)
        for number, prompt in enumerate(prompts)
    ]
    limits = Limits(max_batch_tokens=512, max_sequences=num_sequences, max_model_tokens=256)
    pool = BlockPool(runner.num_blocks, runner.block_tokens)
    scheduler = Scheduler(ContinuousBatching(), pool, limits, None, num_lanes_of(runner))
    clock = WallClock()
    engine = RunnerEngine(runner, clock.now_s, depth=2)
    begun_s, before = time.perf_counter(), [cpu_s(process) for process in processes]
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock).run()
    passed_s = time.perf_counter() - begun_s
    spent = [cpu_s(process) - then for process, then in zip(processes, before, strict=True)]
    num_tokens = len(requests) * OUTPUT_TOKENS
    return Rates(num_tokens / passed_s, num_tokens / sum(spent), num_tokens / max(spent))


def main() -> None:
    """See the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=16)
    asked = parser.parse_args()
    model = ModelSpec.decoder(asked.layers, 512, 8)
    values = {
        name: initial_value(name, shape, model.num_layers, 0, torch.float32)
        for name, shape in parameter_shapes(model).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        served = open_served(save_hugging_face(model, values, Path(folder) / "model"))
        runner = ParallelRunner(served, OPTIONS)
        kinds: tuple[Runner, Runner] = (runner, OneLane(runner))
        passed, alone = [], []
        for pair in range(-1, asked.pairs):  # the first one warms up
            order = kinds if pair % 2 else kinds[::-1]
            found = {id(each): rates(each, runner.process_ids, asked.sequences) for each in order}
            lanes, one = (found[id(each)] for each in kinds)
            if pair >= 0:
                passed.append(lanes.passed / one.passed)
                alone.append(lanes.beside / one.in_turns)
        runner.close()
    for name, ratios in (("as it passed", passed), ("a core for each stage, by CPU seconds", alone)):
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"two lanes over one, {name}: {middle:.2f} (quartiles {low:.2f}, {high:.2f})")  # noqa: T201


if __name__ == "__main__":
    main()
