"""What the benchmarks beside torch share: two gloo processes, our runtime on one of them, and two sides that take turns."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.handlers.core_handler import CORE_HANDLERS
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.rank.rank_list import compile_rank
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.rank.watchdog import Position, SharedPositions
from meshwright.executor.team.exchange_ends import teams_of
from meshwright.executor.team.freed_memory import keep_freed_memory
from meshwright.executor.training.rank_training import TrainingState
from meshwright.executor.training.training_job import RandomTokens, TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.timing.wiring import wire

NUM_RANKS = 2
NUM_WARM_UPS = 2
NUM_STEPS = 3  # of a turn: on a shared machine one step differs from the next by more than the two sides do
TIMEOUT_S = 600


class Side(Protocol):
    """One of the two that take turns."""

    def prepare(self) -> None:
        """Between steps, not timed."""

    def step(self) -> None:
        """What is timed."""


class FixedTokens:
    """All samples of the one batch, made before any time is taken."""

    def __init__(self, vocabulary_size: int, num_samples: int, sequence_length: int) -> None:
        tokens = RandomTokens(vocabulary_size)
        self.tokens, self.targets = tokens.batch(0, 0, range(num_samples), sequence_length)

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """Rows of the batch."""
        low, high = samples[0], samples[-1] + 1
        return self.tokens[low:high], self.targets[low:high]


class Runtime:
    """Our runtime on one rank: the state that a training's handlers share, and the interpreter of its list."""

    def __init__(
        self,
        training: TrainingConfig,
        program: Program,
        rank: int,
        groups: ProcessGroups,
        data: FixedTokens,
        folder: Path,
    ) -> None:
        wiring = wire(program)
        groups.make(teams_of(wiring, "gloo"))
        context = Context(rank, NUM_RANKS, program.coordinates(rank), groups)
        self.state = TrainingState(training, program, rank, torch.float32, context.device)
        self.state.data.batches = data  # type: ignore[assignment]
        context.training = self.state
        counts = training.sample_counts(program)
        ranked = compile_rank(wiring, rank, lambda value: training.shape_of(counts, value), CORE_HANDLERS)
        store = ValueStore(ranked, self.state.initial_values())
        self._shared = SharedPositions(folder / f"positions-{rank}", NUM_RANKS, is_new=True)
        self.interpreter = Interpreter(ranked, store, context, Position(self._shared, rank))

    def run(self) -> None:
        """The list once; all that was sent has left."""
        self.interpreter.run_iteration()
        self.interpreter.drain()


def timed_s(side: Side) -> float:
    """Seconds of a step on the slower rank, the mean over a turn."""
    total_s = torch.zeros((), dtype=torch.float64)
    for _ in range(NUM_STEPS):
        side.prepare()
        dist.barrier()
        begin_s = time.perf_counter()
        side.step()
        seconds = torch.tensor(time.perf_counter() - begin_s, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        total_s += seconds
    return float(total_s) / NUM_STEPS


class Turns:
    """Steps of both sides by turns, who begins changing; those of the first pairs do not count."""

    def __init__(self, ours: Side, theirs: Side) -> None:
        self.ours, self.theirs = ours, theirs
        self.ours_s: list[float] = []
        self.theirs_s: list[float] = []

    def take(self, pair: int) -> None:
        """One step of each."""
        seconds = {}
        for side in (self.ours, self.theirs) if pair % 2 else (self.theirs, self.ours):
            seconds[side] = timed_s(side)
        if pair >= NUM_WARM_UPS:
            self.ours_s.append(seconds[self.ours])
            self.theirs_s.append(seconds[self.theirs])

    def report(self, least_median: float, least_quartile: float) -> dict[str, Any]:
        """Medians, the quartiles of the ratio theirs over ours, and whether it is as claimed."""
        ratios = [theirs / ours for ours, theirs in zip(self.ours_s, self.theirs_s, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        return {
            "ours_ms": round(statistics.median(self.ours_s) * 1e3, 1),
            "torch_ms": round(statistics.median(self.theirs_s) * 1e3, 1),
            "ratio": round(median, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "passed": median >= least_median and low >= least_quartile,
        }


def rank_parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that every process gets; `rank` and `folder` are given by `start_ranks`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=11, help="of steps, by turns")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def start_ranks() -> int:
    """Start this program again as both ranks and wait for them; the worse exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv, "--rank", str(rank), "--folder", folder], env=environment
            )
            for rank in range(NUM_RANKS)
        ]
        try:
            codes = [process.wait() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    return max(abs(code) for code in codes)


def joined(rank: int, folder: Path) -> ProcessGroups:
    """The world of both processes, of one thread each."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as a worker does; for both sides
    return ProcessGroups(rank, NUM_RANKS, folder / "rendezvous", "gloo", TIMEOUT_S)
