"""SkipPipe on four processes of this machine: a small model trained with a quarter of its stages left out of every path.

Six microbatches a step go through stage 0 and two of the three others, each of these equally often, in the order that the
published dispatch brings about. The same tokens through all stages are what it is compared with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from torch import Tensor

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.held_out import held_out_loss, trained_model
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.table import ParameterGroup
from meshwright.lowering.sharding.reduction import OptimizerStep
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.pipeline.skip_pipe.card import realised_program
from meshwright.systems.pipeline.skip_pipe.mechanism import Network, PathPlan, dispatch

NUM_STAGES, BLOCKS_PER_STAGE = 4, 2  # a process each; the first one also has embedding and head
SEQUENCE_LENGTH, SAMPLES = 64, 2  # of a microbatch
MODEL = ModelSpec.decoder(
    NUM_STAGES * BLOCKS_PER_STAGE, 64, 4, max_sequence_length=SEQUENCE_LENGTH, name="skip_pipe study"
)
LAYERS_PER_STAGE = (BLOCKS_PER_STAGE,) * NUM_STAGES + (0,)  # the head is a stage without blocks
OPTIMIZER = OptimizerConfig(learning_rate=3e-3, clip_norm=None)
PARTIAL = tuple((0, *pair) for pair in itertools.combinations(range(1, NUM_STAGES), 2)) * 2
FULL = (tuple(range(NUM_STAGES)),) * len(PARTIAL)
MEMORY = 3
ITERATIONS = 300
HELD_OUT_SEQUENCES = 256

Paths = Sequence[tuple[int, ...]]


def program(paths: Paths) -> Program:
    """One training step of microbatches that take these paths; stages are nodes, all alike, a message takes a quarter."""
    network = Network(np.full((NUM_STAGES, NUM_STAGES), 0.25), np.ones(NUM_STAGES), MEMORY)
    injected = PathPlan(tuple(paths), spacing_s=0.5, num_rounds=1).injections()
    order = realised_program(
        dispatch(network, injected),
        {stage: stage for stage in range(NUM_STAGES)},
        tokens=SAMPLES * SEQUENCE_LENGTH,
        has_waits=False,
    )
    groups = tuple(ParameterGroup(f"stage{stage}", (stage,)) for stage in range(len(LAYERS_PER_STAGE)))
    return OptimizerStep()(order.with_tables(groups=groups))


def training(**options: object) -> TrainingConfig:
    """The job besides its program: text of the standard library."""
    return TrainingConfig(MODEL, LAYERS_PER_STAGE, SEQUENCE_LENGTH, optimizer=OPTIMIZER, **options)  # type: ignore[arg-type]


@cache
def trained(iterations: int) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """Parameters after so many steps on partial paths, and on full ones."""
    jobs = [Job.of(program(paths), iterations, training=training()) for paths in (PARTIAL, FULL)]
    with Pool(NUM_STAGES) as pool:
        partial, full = (pool.run(job).parameters for job in jobs)
    return partial, full


def loss(parameters: Mapping[str, Tensor], dropped: Sequence[int] = ()) -> float:
    """Nats per token on held-out text, with the blocks of some stages left out."""
    model = trained_model(MODEL, parameters)
    for stage in dropped:
        for block in range(stage * BLOCKS_PER_STAGE, (stage + 1) * BLOCKS_PER_STAGE):
            del model.layers[str(block)]
    return held_out_loss(model, Corpus.standard_library(), HELD_OUT_SEQUENCES, SEQUENCE_LENGTH)


def loss_ratio(iterations: int = ITERATIONS) -> float:
    """Held-out loss after partial paths over that after full ones, both with all stages, at equal tokens."""
    partial, full = trained(iterations)
    return loss(partial) / loss(full)


def perplexity_ratios(parameters: Mapping[str, Tensor], num_dropped: int) -> tuple[float, ...]:
    """Perplexity without so many stages over that of the whole model, for every set of them; the first one stays."""
    whole = loss(parameters)
    sets = itertools.combinations(range(1, NUM_STAGES), num_dropped)
    return tuple(math.exp(loss(parameters, dropped) - whole) for dropped in sets)


def perplexity_ratio(num_dropped: int, iterations: int = ITERATIONS) -> float:
    """The same for the model trained on partial paths, geometric mean over the sets."""
    ratios = perplexity_ratios(trained(iterations)[0], num_dropped)
    return math.prod(ratios) ** (1 / len(ratios))


def num_worse(num_dropped: int, iterations: int = ITERATIONS) -> int:
    """Sets of stages whose loss costs the model trained on partial paths at least as much perplexity as the other."""
    partial, full = (perplexity_ratios(parameters, num_dropped) for parameters in trained(iterations))
    return sum(one >= other for one, other in zip(partial, full, strict=True))
