"""The same training step through torch.distributed.pipelining and through ours, in the same two processes, by turns.

    python benchmarks/pipeline_vs_torch.py [--pairs 11] [--schedules gpipe,1f1b,...]

Two gloo processes of one thread each build the same stages twice, with the same parameters, and run forward and
backward of all microbatches, first one then the other, in turns; the time of a step is that of the slower rank. The
gradients of both are compared. torch runs our own modules (so that only the runtimes differ) except for the
zero-bubble schedule, whose split needs modules that autograd can take apart; `plain` rows give torch modules of
torch throughout. Prints one JSON line a schedule: claim, our value, ratio.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from plain_decoder import PlainDecoder
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from two_ranks import (
    NUM_RANKS,
    NUM_WARM_UPS,
    FixedTokens,
    Runtime,
    Turns,
    joined,
    rank_parser,
    start_ranks,
)

from meshwright.executor.models.decoder import build_stage
from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs.model.layers import split_layers, stage_layers
from meshwright.specs.model.model import ModelSpec

NUM_MICROBATCHES = 8
SEQUENCE = 256
# ANCHORS.md, part A, 4: the model of the baselines measured on this kind of machine.
MODEL = ModelSpec.decoder(8, 256, 8, vocabulary_size=2048, max_sequence_length=SEQUENCE)
GRADIENT_TOLERANCE = 1e-4  # float32, relative to the largest number of a gradient
MEDIAN_CLAIM, QUARTILE_CLAIM = 1.0, 0.95  # issue 3, condition 7

# ours -> theirs, stages a rank of theirs
PEERS: dict[str, tuple[str, int]] = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved_1f1b": ("ScheduleInterleaved1F1B", 2),
    "zb_h1": ("ScheduleInterleavedZeroBubble", 2),
}


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
        layers = split_layers(MODEL.num_layers, program.tables.num_stages)
        training = TrainingConfig(MODEL, layers, SEQUENCE, source=RANDOM)
        self.runtime = Runtime(training, program, rank, groups, data, folder)
        self.step = self.runtime.run

    def prepare(self) -> None:
        """Between steps: forget gradients and data."""
        for group in self.runtime.state.groups.values():
            group.end()
        self.runtime.state.begin_iteration(0)

    def gradients(self) -> dict[str, Tensor]:
        """By name in the whole model."""
        return {
            n: p.grad
            for g in self.runtime.state.groups.values()
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


def all_gradients(side: Ours | Theirs) -> dict[str, Tensor]:
    """Of all ranks together (stages of the two sides may lie differently)."""
    gathered: list[dict[str, Tensor]] = [{} for _ in range(NUM_RANKS)]
    dist.all_gather_object(gathered, side.gradients())
    return {name: value for part in gathered for name, value in part.items()}


def compare(
    name: str, rank: int, groups: ProcessGroups, pairs: int, folder: Path, is_plain: bool
) -> dict[str, object]:
    """Pairs of steps by turns, then the gradients."""
    data = FixedTokens(MODEL.vocabulary_size, NUM_MICROBATCHES, SEQUENCE)
    ours, theirs = Ours(name, rank, groups, data, folder), Theirs(name, rank, data, is_plain)
    turns = Turns(ours, theirs)
    for pair in range(NUM_WARM_UPS + pairs):
        turns.take(pair)
    ours.runtime.interpreter.close()
    found, expected = all_gradients(ours), all_gradients(theirs)
    assert set(found) == set(expected), sorted(set(found) ^ set(expected))
    worst = max(float((found[n] - expected[n]).abs().max() / expected[n].abs().max()) for n in expected)
    assert worst < GRADIENT_TOLERANCE, f"{name}: gradients differ by {worst}"
    return {
        "claim": f"{name}: torch {PEERS[name][0]} / ours, median >= {MEDIAN_CLAIM}, lower quartile >= {QUARTILE_CLAIM}",
        "modules": "plain" if is_plain else "same",
        **turns.report(MEDIAN_CLAIM, QUARTILE_CLAIM),
        "gradient_difference": worst,
    }


def run_rank(rank: int, folder: Path, schedules: Sequence[str], pairs: int) -> None:
    """One process."""
    with joined(rank, folder) as groups:
        for name in schedules:
            kinds = [True] if name == "zb_h1" else [False, True]
            for is_plain in kinds:
                line = compare(name, rank, groups, pairs, folder, is_plain)
                if rank == 0:
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()


def main() -> int:
    """Both ranks, or the one that this process is."""
    parser = rank_parser(__doc__)
    parser.add_argument("--schedules", default=",".join(PEERS))
    given = parser.parse_args()
    if given.rank is None:
        return start_ranks()
    run_rank(given.rank, given.folder, given.schedules.split(","), given.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
