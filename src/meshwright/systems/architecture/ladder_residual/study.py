"""Ladder residuals on this machine: two processes against one, waits counted in the trace, byte models trained.

Shapes: B samples, S tokens, E width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.models.one_process import mean_of_batches, optimise
from meshwright.executor.models.sublayer import (
    KINDS,
    SublayerSize,
    first_weight,
    part_of_weight,
    run_stack,
    sublayer,
)
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import ValueName
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.systems.architecture.ladder_residual.mechanism import INPUT, OUTPUT, delay_of, ladder_residual

NUM_PROCESSES, NUM_BLOCKS = 2, 3
SIZE = SublayerSize(64, 4, 16, 256)
NUM_SAMPLES, NUM_TOKENS = 2, 64
# The waits: the link takes milliseconds for an all-reduce, the processes several times that for a sublayer.
LINK_BYTES_PER_S, SLOWER, LONG_TOKENS, NUM_TIMED = 200e6, 12.0, 256, 7
# The byte model: four blocks, enough steps to be far below the entropy of single bytes (3.3 nats).
TRAINED = SublayerSize(64, 4, 16, 256)
TRAINED_BLOCKS, NUM_STEPS, BATCH, SEQUENCE_LENGTH, NUM_SEEDS = 4, 800, 8, 64, 2
RATE, LEAST_RATE, WARM_UP = 3e-3, 3e-4, 20  # a cosine from the one to the other behind a linear rise
TABLE_SPREAD = 0.1
NUM_HELD_OUT = 256
Weights = Mapping[ValueName, Tensor]


def whole_weights(num_blocks: int, seed: int = 0) -> list[Tensor]:
    """Flat weights of all sublayers, in float64."""
    kinds = KINDS * num_blocks
    return [first_weight(SIZE, kind, seed, j, dtype=torch.float64) for j, kind in enumerate(kinds)]


def stream_input(num_tokens: int = NUM_TOKENS) -> Tensor:
    """x_BSE, drawn."""
    generator = keyed_generator(random_key("ladder", num_tokens))
    return torch.randn(NUM_SAMPLES, num_tokens, SIZE.width, generator=generator, dtype=torch.float64)


def one_process(form: str, x_BSE: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The recurrence with whole weights."""
    stack = [
        partial(lambda x, kind, w: sublayer(SIZE, kind)(x, w), kind=KINDS[j % 2], w=weight)
        for j, weight in enumerate(weights)
    ]
    return run_stack(x_BSE, stack, delay_of(form))


def execute(
    form: str,
    num_blocks: int,
    pool: Pool,
    num_tokens: int = NUM_TOKENS,
    iterations: int = 1,
    slowing: Slowing | None = None,
) -> JobResult:
    """The blocks on processes of the pool, weights cut over them."""
    weights, x_BSE = whole_weights(num_blocks), stream_input(num_tokens)
    initial = [
        {
            ValueName(INPUT.name): x_BSE,
            **{
                ValueName("parameter", j): part_of_weight(SIZE, KINDS[j % 2], weight, rank, NUM_PROCESSES)
                for j, weight in enumerate(weights)
            },
        }
        for rank in range(NUM_PROCESSES)
    ]
    return run_program(
        ladder_residual(num_blocks, NUM_PROCESSES, form),
        initial_values=initial,
        iterations=iterations,
        keep=(OUTPUT.name,),
        pool=pool,
        dtype="float64",
        options={"size": asdict(SIZE)},
        slowing=slowing,
    )


def output_difference(form: str, pool: Pool | None = None) -> float:
    """Largest |two processes - one| over the largest |output|."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        result = execute(form, NUM_BLOCKS, workers)
    wanted = one_process(form, stream_input(), whole_weights(NUM_BLOCKS))
    found = [rank[ValueName(OUTPUT.name)] for rank in result.values]
    return max(float((one - wanted).abs().max() / wanted.abs().max()) for one in found)


def executed_waits(form: str, num_blocks: int, pool: Pool | None = None) -> float:
    """All-reduces waited for in the median iteration, with a slow link and slower computes."""
    slowing = Slowing(
        (LinkLimit(0, 1, LINK_BYTES_PER_S, burst_bytes=0.0),),
        tuple((p, SLOWER) for p in range(NUM_PROCESSES)),
    )
    with opened_pool(pool, NUM_PROCESSES) as workers:
        trace = execute(form, num_blocks, workers, LONG_TOKENS, NUM_TIMED, slowing).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    return float(np.median([num_waits(trace, iteration) for iteration in range(NUM_TIMED)]))


def num_waits(trace: Trace, iteration: int) -> int:
    """All-reduces of an iteration that every process waits for: that end later than the computes in front of their
    first readers. What only one waits for is the other process, not the all-reduce."""
    per_list = [_waits_of_list(trace, rank, iteration) for rank in range(trace.program.num_lists)]
    return sum(all(waited) for waited in zip(*per_list, strict=True))


def _waits_of_list(trace: Trace, rank: int, iteration: int) -> list[bool]:
    """Of every all-reduce that a list reads, in order: is it still running when there is nothing else to compute?"""
    program, deps, ends = trace.program, dependencies(trace.program), trace.end_s[iteration]
    found: dict[int, bool] = {}
    computed_s = 0.0
    for row in range(int(program.offsets[rank]), int(program.offsets[rank + 1])):
        if program.kinds[row] == Kind.COMPUTE:
            for read in deps.row[deps.ptr[row] : deps.ptr[row + 1]].tolist():
                if program.kinds[read] == Kind.COLLECTIVE:
                    found.setdefault(read, bool(ends[read] > computed_s))
            computed_s = ends[row]
    return list(found.values())


def loss_of(form: str, weights: Sequence[Tensor], tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean nats a byte; `weights`: embedding VE, positions SE, last norm E, then the sublayers. The head is tied."""
    embedding_VE, positions_SE, norm_E, *flat = weights
    x_BSE = embedding_VE[tokens_BS] + positions_SE
    stack = [
        partial(lambda x, kind, w: sublayer(TRAINED, kind)(x, w), kind=KINDS[j % 2], w=weight)
        for j, weight in enumerate(flat)
    ]
    x_BSE = F.rms_norm(run_stack(x_BSE, stack, delay_of(form)), (TRAINED.width,), norm_E)
    return F.cross_entropy((x_BSE @ embedding_VE.T).flatten(0, 1), targets_BS.flatten())


def first_model(seed: int, num_blocks: int = TRAINED_BLOCKS) -> list[Tensor]:
    """Weights before the first step, the same for both forms."""
    generator = keyed_generator(random_key("byte model", seed))
    shapes = ((NUM_BYTE_VALUES, TRAINED.width), (SEQUENCE_LENGTH, TRAINED.width))
    tables = [TABLE_SPREAD * torch.randn(shape, generator=generator) for shape in shapes]
    kinds = KINDS * num_blocks
    flat = [first_weight(TRAINED, kind, seed, j, depth=len(kinds)) for j, kind in enumerate(kinds)]
    return [one.requires_grad_() for one in (*tables, torch.ones(TRAINED.width), *flat)]


def trained_loss(form: str, seed: int, num_steps: int = NUM_STEPS) -> float:
    """Held-out nats a byte after training."""
    corpus, weights = Corpus.standard_library(), first_model(seed)
    loss, optimizer = partial(loss_of, form, weights), torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    batches = (corpus.batch(seed, step, range(BATCH), SEQUENCE_LENGTH) for step in range(num_steps))
    optimise(loss, optimizer, batches, lambda step: _rate(step, num_steps))
    return mean_of_batches(loss, corpus.held_out_batches(NUM_HELD_OUT, SEQUENCE_LENGTH, BATCH))


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
