"""The same training step through torch.distributed.pipelining and through ours, in the same two processes, by turns.

    python benchmarks/pipeline_vs_torch.py [--pairs 11] [--schedules gpipe,1f1b,...]

Two gloo processes of one thread each build the same stages twice, with the same parameters, and run forward and
backward of all microbatches, first one then the other, in turns; the time of a step is that of the slower rank. The
gradients of both are compared. torch runs our own modules (so that only the runtimes differ) except for the
zero-bubble schedule, whose split needs modules that autograd can take apart; `plain` rows give torch modules of
torch throughout. Prints one JSON line a schedule: claim, our value, ratio.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

import meshwright.executor.exchange
import meshwright.executor.train_stage  # noqa: F401 - registers handlers
from meshwright.executor.context import Context
from meshwright.executor.interpreter import Interpreter
from meshwright.executor.models.decoder import build_stage
from meshwright.executor.models.plain_decoder import PlainDecoder
from meshwright.executor.process_group import ProcessGroups
from meshwright.executor.rank_list import compile_rank
from meshwright.executor.training import RANDOM, RandomTokens, Training
from meshwright.executor.training_state import TrainingState
from meshwright.executor.value_store import ValueStore
from meshwright.executor.watchdog import Position, SharedPositions
from meshwright.ir.program import Program
from meshwright.ir.replay import wire
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.layers import split_layers, stage_layers
from meshwright.specs.model import ModelSpec

NUM_RANKS = 2
NUM_MICROBATCHES = 8
SEQUENCE = 256
# ANCHORS.md, part A, 4: the model of the baselines measured on this kind of machine.
MODEL = ModelSpec.decoder(8, 256, 8, vocabulary_size=2048, max_sequence_length=SEQUENCE)
NUM_WARM_UPS = 2
TIMEOUT_S = 300
GRADIENT_TOLERANCE = 1e-4  # float32, relative to the largest number of a gradient
MEDIAN_CLAIM, QUARTILE_CLAIM = 1.0, 0.95  # issue 3, condition 7

# ours -> theirs, stages a rank of theirs
PEERS: dict[str, tuple[str, int]] = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", 2),
    "zb_h1": ("ScheduleInterleavedZeroBubble", 2),
}
Step = Callable[[], None]


class FixedTokens:
    """All samples of the one batch, made before any time is taken."""

    def __init__(self, tokens: Tensor, targets: Tensor) -> None:
        self.tokens, self.targets = tokens, targets

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """Rows of the batch."""
        low, high = samples[0], samples[-1] + 1
        return self.tokens[low:high], self.targets[low:high]


def program_of(name: str) -> Program:
    """Forward and backward of all microbatches, without a step of the optimizer (as theirs)."""
    schedule = registered()[name]
    num_stages = NUM_RANKS * schedule.num_chunks
    program = program_of_orders(
        schedule.orders(NUM_RANKS, NUM_MICROBATCHES),
        microbatches=[Microbatch(SEQUENCE, 1.0 / NUM_MICROBATCHES)] * NUM_MICROBATCHES,
        groups=[ParameterGroup(f"stage{s}", (s,)) for s in range(num_stages)],
    )
    return Transfers()(program)


class Ours:
    """Our runtime on one rank."""

    def __init__(self, name: str, rank: int, groups: ProcessGroups, data: FixedTokens, folder: Path) -> None:
        program = program_of(name)
        training = Training(
            MODEL, split_layers(MODEL.num_layers, program.tables.num_stages), SEQUENCE, data=RANDOM
        )
        self.context = Context(rank, NUM_RANKS, program.coordinates(rank), groups)
        self.state = TrainingState(training, program, rank, torch.float32, self.context.device)
        self.state.batches = data
        self.context.training = self.state
        counts = training.sample_counts(program)
        ranked = compile_rank(wire(program), rank, lambda value: training.shape_of(counts, value))
        store = ValueStore(ranked, self.state.initial_values())
        self.shared = SharedPositions(folder / f"{name}-{rank}", NUM_RANKS, is_new=True)
        self.interpreter = Interpreter(ranked, store, self.context, Position(self.shared, rank))

    def prepare(self) -> None:
        """Between steps: forget gradients and data."""
        for group in self.state.groups.values():
            group.end()
        self.state.begin_iteration(0)

    def step(self) -> None:
        """Forward and backward of all microbatches; all sends have left."""
        self.interpreter.run_iteration()
        self.interpreter.drain()

    def gradients(self) -> dict[str, Tensor]:
        """By name in the whole model."""
        return {
            n: p.grad
            for g in self.state.groups.values()
            for n, p in g.parameters.items()
            if p.grad is not None
        }


class Theirs:
    """torch.distributed.pipelining on one rank."""

    def __init__(self, name: str, rank: int, data: FixedTokens, is_plain: bool) -> None:
        schedule_name, chunks = PEERS[name]
        num_stages = NUM_RANKS * chunks
        layers = stage_layers(split_layers(MODEL.num_layers, num_stages))
        self.modules: list[nn.Module] = []
        stages = []
        for number in range(rank, num_stages, NUM_RANKS):
            first, count, has_embedding, has_head = layers[number]
            module: nn.Module = build_stage(MODEL, range(first, first + count), has_embedding, has_head)
            if is_plain:
                plain = PlainDecoder(MODEL, range(first, first + count), has_embedding, has_head)
                plain.load_state_dict(module.state_dict())
                module = plain
            self.modules.append(module)
            stages.append(PipelineStage(module, number, num_stages, torch.device("cpu")))
        weight = 1.0 / (NUM_MICROBATCHES * SEQUENCE)

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") * weight

        kind = getattr(pipelining, schedule_name)
        chosen = stages[0] if chunks == 1 else stages
        self.schedule = kind(chosen, NUM_MICROBATCHES, loss_fn=loss, scale_grads=False)
        self.data, self.rank = data, rank

    def prepare(self) -> None:
        """Between steps: forget gradients."""
        for module in self.modules:
            module.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Forward and backward of all microbatches."""
        inputs = (self.data.tokens,) if self.rank == 0 else ()
        target = self.data.targets if self.rank == NUM_RANKS - 1 else None
        losses: list[Tensor] = []
        self.schedule.step(*inputs, target=target, losses=losses if target is not None else None)

    def gradients(self) -> dict[str, Tensor]:
        """By name in the whole model."""
        return {n: p.grad for m in self.modules for n, p in m.named_parameters() if p.grad is not None}


def timed(side: Ours | Theirs) -> float:
    """Seconds of a step on the slower rank."""
    side.prepare()
    dist.barrier()
    begin_s = time.perf_counter()
    side.step()
    seconds = torch.tensor([time.perf_counter() - begin_s], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def all_gradients(side: Ours | Theirs) -> dict[str, Tensor]:
    """Of all ranks together (stages of the two sides may lie differently)."""
    gathered: list[dict[str, Tensor]] = [{} for _ in range(NUM_RANKS)]
    dist.all_gather_object(gathered, side.gradients())
    return {name: value for part in gathered for name, value in part.items()}


def compare(
    name: str, rank: int, groups: ProcessGroups, pairs: int, folder: Path, is_plain: bool
) -> dict[str, object]:
    """Pairs of steps by turns, then the gradients."""
    tokens, targets = RandomTokens(MODEL.vocabulary_size).batch(0, 0, range(NUM_MICROBATCHES), SEQUENCE)
    data = FixedTokens(tokens, targets)
    ours, theirs = Ours(name, rank, groups, data, folder), Theirs(name, rank, data, is_plain)
    times: list[tuple[float, float]] = []
    for pair in range(NUM_WARM_UPS + pairs):
        if pair % 2:
            mine = timed(ours)
            peer = timed(theirs)
        else:
            peer = timed(theirs)
            mine = timed(ours)
        times.append((mine, peer))
    ours.interpreter.close()
    found, expected = all_gradients(ours), all_gradients(theirs)
    assert set(found) == set(expected), sorted(set(found) ^ set(expected))
    worst = max(float((found[n] - expected[n]).abs().max() / expected[n].abs().max()) for n in expected)
    assert worst < GRADIENT_TOLERANCE, f"{name}: gradients differ by {worst}"
    times = times[NUM_WARM_UPS:]
    ratios = [peer / mine for mine, peer in times]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "claim": f"{name}: torch {PEERS[name][0]} / ours, median >= {MEDIAN_CLAIM}, lower quartile >= {QUARTILE_CLAIM}",
        "modules": "plain" if is_plain else "same",
        "ours_ms": round(statistics.median(mine for mine, _ in times) * 1e3, 1),
        "torch_ms": round(statistics.median(peer for _, peer in times) * 1e3, 1),
        "ratio": round(median, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "gradient_difference": worst,
        "passed": median >= MEDIAN_CLAIM and low >= QUARTILE_CLAIM,
    }


def run_rank(rank: int, folder: Path, schedules: Sequence[str], pairs: int) -> None:
    """One process."""
    torch.set_num_threads(1)
    with ProcessGroups(rank, NUM_RANKS, folder / "rendezvous", "gloo", TIMEOUT_S) as groups:
        for name in schedules:
            kinds = [True] if name == "zb_h1" else [False, True]
            for is_plain in kinds:
                line = compare(name, rank, groups, pairs, folder, is_plain)
                if rank == 0:
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()


def main() -> None:
    """Start both ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--schedules", default=",".join(PEERS))
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder")
    given = parser.parse_args()
    schedules = given.schedules.split(",")
    if given.rank is not None:
        run_rank(given.rank, Path(given.folder), schedules, given.pairs)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    begin = datetime.datetime.now()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--pairs", str(given.pairs), "--schedules", given.schedules]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank), "--folder", folder], env=environment)
            for rank in range(NUM_RANKS)
        ]
        try:
            codes = [process.wait() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    sys.stderr.write(f"took {(datetime.datetime.now() - begin).total_seconds():.0f} s\n")
    sys.exit(max(abs(code) for code in codes))


if __name__ == "__main__":
    main()
