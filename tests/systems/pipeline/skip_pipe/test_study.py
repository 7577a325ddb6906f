"""Partial paths executed on four processes: gradients of one process that runs the same layers, weighted by visits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from benchmarks.plain_decoder import PlainDecoder
from tests.training_case import largest_difference

from meshwright.catalog import find_schedule
from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.training.training_job import RANDOM, RandomTokens
from meshwright.ir.judge.verify import verify
from meshwright.lowering.lower import lower
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.pipeline.skip_pipe import study as skip_pipe

HEAD = skip_pipe.NUM_STAGES  # the stage behind all others
TOLERANCE = 1e-10  # of the project, for float64
SHORT = 60  # steps, where the claims take 300


def blocks_of(path: tuple[int, ...]) -> list[int]:
    return [
        stage * skip_pipe.BLOCKS_PER_STAGE + k for stage in path for k in range(skip_pipe.BLOCKS_PER_STAGE)
    ]


def stage_of(name: str) -> int:
    """Stage of a parameter of the whole model."""
    words = name.split(".")
    if words[0] != "layers":
        return 0 if words[0] == "embedding" else HEAD
    return int(words[1]) // skip_pipe.BLOCKS_PER_STAGE


def reference(paths: skip_pipe.Paths) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first step: every microbatch through a model of its own path's blocks."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the plain model makes its tables in the default dtype
    try:
        model = PlainDecoder(skip_pipe.MODEL)
        model.load_state_dict(build_model(skip_pipe.MODEL, torch.float64).state_dict())
    finally:
        torch.set_default_dtype(before)
    blocks = dict(model.layers.items())
    length, count = skip_pipe.SEQUENCE_LENGTH, skip_pipe.SAMPLES
    total = 0.0
    for m, path in enumerate(paths):
        samples = range(m * count, (m + 1) * count)
        tokens_BS, targets_BS = RandomTokens(skip_pipe.MODEL.vocabulary_size).batch(0, 0, samples, length)
        model.layers = torch.nn.ModuleDict({str(block): blocks[str(block)] for block in blocks_of(path)})
        loss = token_cross_entropy(model(tokens_BS), targets_BS, 1.0 / (len(paths) * count * length))
        loss.backward()
        total += loss.item()
    model.layers = torch.nn.ModuleDict(blocks)
    visits = Counter({0: len(paths), HEAD: len(paths)})
    visits.update(stage for path in paths for stage in path[1:])
    scale = {stage: len(paths) / visits[stage] for stage in visits}
    return total, {name: p.grad * scale[stage_of(name)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("paths", [skip_pipe.PARTIAL, skip_pipe.FULL], ids=["partial", "full"])
def test_gradients_are_means_over_visits(paths: skip_pipe.Paths, gloo_pool: Pool) -> None:
    job = replace(skip_pipe.training(), source=RANDOM, records_gradients=True)
    result = run_training(skip_pipe.program(paths), job, 1, pool=gloo_pool, dtype="float64")
    loss, gradients = reference(paths)
    assert result.losses[0] == pytest.approx(loss, rel=TOLERANCE)
    assert largest_difference(result.gradients[0], gradients) < TOLERANCE


def test_a_plan_of_ones_own_is_trained_on_its_own_stages(gloo_pool: Pool) -> None:
    length, count = skip_pipe.SEQUENCE_LENGTH, skip_pipe.SAMPLES
    plan = Plan.of(
        skip_pipe.MODEL, Cluster.detect(4), Workload(6 * count, length),
        schedule="skip_pipe(skipped=1, message_s=0.5)", pp=4, dp=1, microbatch_size=count,
    )  # fmt: skip
    program = lower(plan, find_schedule(plan.schedule))
    verify(program, host="in_order")
    paths = [tuple(hop.stage for hop in program.path_of(m)) for m in range(6)]
    assert Counter(paths) == {(0, 1, 3): 3, (0, 2, 3): 3}
    job = replace(
        skip_pipe.training(), layers_per_stage=plan.layers_per_stage, source=RANDOM, records_gradients=True
    )
    result = run_training(program, job, 1, pool=gloo_pool, dtype="float64")
    loss, gradients = reference(paths)
    assert result.losses[0] == pytest.approx(loss, rel=TOLERANCE)
    assert largest_difference(result.gradients[0], gradients) < TOLERANCE


def test_the_program_is_legal_on_hosts_that_walk_their_lists() -> None:
    for paths in (skip_pipe.PARTIAL, skip_pipe.FULL):
        verify(skip_pipe.program(paths), host="in_order")


def test_stages_are_visited_equally_often() -> None:
    visits = Counter(stage for path in skip_pipe.PARTIAL for stage in path)
    assert visits == {0: 6, 1: 4, 2: 4, 3: 4}
    assert len(skip_pipe.program(skip_pipe.PARTIAL).tables.paths) == 3


@pytest.mark.slow
def test_training_on_partial_paths_bears_the_loss_of_stages() -> None:
    """Fewer steps than the claims run: the loss is still falling fast, and shallow paths learn faster at first."""
    assert skip_pipe.loss_ratio(SHORT) < 1.05
    assert skip_pipe.num_worse(2, SHORT) == 0
    assert skip_pipe.perplexity_ratio(2, SHORT) < 1.07
