"""Ladder residuals on this machine: two processes against one, sums beside computes in the trace, byte models trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.one_process import mean_of_batches, optimise
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.schedules.order import registered
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes, device_order
from meshwright.stage.piece import executed_pieces, piece_layers
from meshwright.systems.architecture.ladder_residual.mechanism import ladder_residual

NUM_PROCESSES, BATCH = 2, 2
# The link takes milliseconds for a sum, the processes several times that for a part of a block.
LINK_BYTES_PER_S, SLOWER, LONG_TOKENS, NUM_TIMED = 200e6, 12.0, 256, 5
LEAST_SHARE = 0.05  # of an exchange's time, from which on it counts as beside a compute
# The byte model: four blocks, enough steps to be far below the entropy of single bytes (3.3 nats).
NUM_STEPS, TRAINED_BATCH, SEQUENCE_LENGTH, NUM_SEEDS = 800, 8, 64, 2
RATE, LEAST_RATE, WARM_UP = 3e-3, 3e-4, 20  # a cosine from the one to the other behind a linear rise
NUM_HELD_OUT = 256


@dataclass(frozen=True)
class Setting:
    """A small decoder, standard or with a ladder residual, on tensor-parallel processes."""

    form: str
    num_blocks: int = 3
    tp: int = NUM_PROCESSES
    num_tokens: int = SEQUENCE_LENGTH

    @property
    def model(self) -> ModelSpec:
        """Of bytes."""
        model = ModelSpec.decoder(self.num_blocks, 64, 4, max_sequence_length=self.num_tokens)
        return ladder_residual(model) if self.form == "ladder" else model

    def run(self, pool: Pool, iterations: int, slowing: Slowing | None = None) -> JobResult:
        """Training steps on random tokens in float64; every gradient comes back."""
        cluster, workload = Cluster.detect(self.tp), Workload(BATCH, self.num_tokens)
        plan = Plan.of(
            self.model, cluster, workload, dtype="float64", tp=self.tp, microbatch_size=BATCH
        ).placed(cluster)
        pieces = executed_pieces(plan)
        training = TrainingConfig(
            plan.model, tuple(each.num_blocks for each in piece_layers(plan.stages(), pieces)),
            self.num_tokens, OptimizerConfig(clip_norm=None), records_gradients=True, layout=TensorLayout.of(plan),
            data_axes=data_axes(plan), source=RANDOM,
        )  # fmt: skip
        program = lower(plan, registered()[plan.schedule], pieces=pieces, in_segments=True)
        job = Job.of(program, iterations, training=training, dtype=plan.dtype)
        return pool.run(job, places=device_order(plan), slowing=slowing)


def gradient_difference(form: str, pool: Pool | None = None) -> float:
    """Largest |two processes - one| over the largest of any gradient of a step."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        found, wanted = (Setting(form, tp=tp).run(workers, 1).gradients[0] for tp in (NUM_PROCESSES, 1))
    return max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in wanted.items())


def num_beside(form: str, num_blocks: int, pool: Pool | None = None) -> float:
    """Sums of a step's blocks, forward and backward, that run beside a compute on every process: of the median iteration,
    with a slow link and slower computes."""
    slowing = Slowing(
        (LinkLimit(0, 1, LINK_BYTES_PER_S, burst_bytes=0.0),),
        tuple((p, SLOWER) for p in range(NUM_PROCESSES)),
    )
    with opened_pool(pool, NUM_PROCESSES) as workers:
        trace = Setting(form, num_blocks, num_tokens=LONG_TOKENS).run(workers, NUM_TIMED, slowing).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    return float(np.median([_num_beside(trace, iteration) for iteration in range(NUM_TIMED)]))


def _num_beside(trace: Trace, iteration: int) -> int:
    per_list = [_are_beside(trace, rank, iteration) for rank in range(trace.program.num_lists)]
    return sum(all(each) for each in zip(*per_list, strict=True))


def _are_beside(trace: Trace, rank: int, iteration: int) -> list[bool]:
    """Of every sum of a list, in order: does some compute take up a part of its time?"""
    program, start_s, end_s = trace.program, trace.start_s[iteration], trace.end_s[iteration]
    rows = np.arange(int(program.offsets[rank]), int(program.offsets[rank + 1]))
    computes = rows[program.kinds[rows] == Kind.COMPUTE]
    names = [program.tables.effects[effect].name for effect in program.columns.effect[rows]]
    found = []
    for row in (row for row, name in zip(rows.tolist(), names, strict=True) if name == "ALL_REDUCE"):
        both_s = np.minimum(end_s[computes], end_s[row]) - np.maximum(start_s[computes], start_s[row])
        found.append(bool(np.maximum(both_s, 0.0).sum() > LEAST_SHARE * (end_s[row] - start_s[row])))
    return found


def trained_loss(form: str, seed: int, num_steps: int = NUM_STEPS) -> float:
    """Held-out nats a byte of a four-layer model after training in one process."""
    corpus, stage = Corpus.standard_library(), build_model(Setting(form, 4).model, seed=seed)

    def loss(tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        return F.cross_entropy(stage(tokens_BS).flatten(0, 1), targets_BS.flatten())

    optimizer = torch.optim.AdamW(stage.parameters(), lr=RATE, weight_decay=0.0)
    batches = (corpus.batch(seed, step, range(TRAINED_BATCH), SEQUENCE_LENGTH) for step in range(num_steps))
    optimise(loss, optimizer, batches, lambda step: _rate(step, num_steps))
    return mean_of_batches(loss, corpus.held_out_batches(NUM_HELD_OUT, SEQUENCE_LENGTH, TRAINED_BATCH))


def _rate(step: int, num_steps: int) -> float:
    """Learning rate of a step."""
    cosine = (1 + math.cos(math.pi * step / num_steps)) / 2
    return min(1.0, (step + 1) / WARM_UP) * (LEAST_RATE + (RATE - LEAST_RATE) * cosine)


@cache
def mean_loss(form: str, num_steps: int = NUM_STEPS) -> float:
    """Over the seeds."""
    return float(np.mean([trained_loss(form, seed, num_steps) for seed in range(NUM_SEEDS)]))


def loss_ratio() -> float:
    """Ladder over standard."""
    return mean_loss("ladder") / mean_loss("standard")
