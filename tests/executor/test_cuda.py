"""One rank on a CUDA device, with NCCL: what plans give there equals one process of plain torch on the CPU, in float64.

`make gpu` runs this file on a machine with a device; elsewhere all of it is skipped. NCCL takes one rank a device, so with
one device the streams are those of a rank that sends nothing: computes, loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.weights.initialisation import RandomValues
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.mesh import device_order
from tests.executor.serving.scattered_blocks import served_work
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 3
EVENT_S = 1e-6  # half a microsecond is what an event's clock tells apart
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]


def planned(model: str = "llama", clip: float = 0.0, **choices: Any) -> Planned:
    """A plan for one rank."""
    return Planned(model, clip, choices=choices)


CASES = [
    planned(),
    planned(optimizer="sgd"),
    planned("gpt", split_backward=True, schedule="zb_h1"),
    planned("qwen", clip=0.1, recompute="full"),
    planned("tied", schedule="zbv", split_backward=True),
    planned("deep", schedule="interleaved_1f1b"),
    planned("mixtral"),
    planned("qwen moe", recompute="full"),
    planned("latent", split_backward=True),
    planned("deepseek", clip=0.1),
    planned("ladder gpt"),
    planned("gpt", recompute="selective"),
    planned(recompute="selective_op"),
    planned(microbatch_size=2, token_parts=2),
    planned(passes=("offload_optimizer",)),
    planned("tied", clip=0.1, passes=("offload_optimizer", "canonical_reduction")),
]


@pytest.fixture(scope="module")
def cuda_pool() -> Iterator[Pool]:
    """One worker."""
    with Pool(1) as pool:
        yield pool


def run_on_cuda(case: Planned, pool: Pool, **fields: Any) -> JobResult:
    """What the case gives on the device."""
    job, plan = case.job(ITERATIONS)
    return pool.run(replace(job, device="cuda", **fields), places=device_order(plan))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_plan_on_a_cuda_device_equals_one_process(case: Planned, cuda_pool: Pool) -> None:
    assert_equal_to_one_process(case, run_on_cuda(case, cuda_pool), ITERATIONS)


def test_a_run_on_a_cuda_device_is_the_same_twice(cuda_pool: Pool) -> None:
    first, second = (run_on_cuda(planned("gpt"), cuda_pool) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.parameters[name], value) for name, value in second.parameters.items())


def test_rows_of_a_stream_end_in_their_order(cuda_pool: Pool) -> None:
    """Times are read from events: no row ends before it starts, or starts before the one before it has ended."""
    trace = run_on_cuda(planned(passes=("offload_optimizer",)), cuda_pool).trace
    assert trace is not None
    streams = trace.program.columns.stream
    start, end = trace.start_s[-1], trace.end_s[-1]
    assert (end >= start).all()
    for stream in set(streams.tolist()):
        rows = (streams == stream).nonzero()[0]
        assert (start[rows[1:]] >= end[rows[:-1]] - EVENT_S).all()


SERVED = {
    "llama": ModelSpec.decoder(2, 64, 4, num_kv_heads=2, vocabulary_size=61, max_sequence_length=64),
    "window": ModelSpec.decoder(2, 64, 4, vocabulary_size=61, max_sequence_length=64).changed(
        architecture="mistral", sliding_window=7, sliding_layers=(0, 1)
    ),
    "experts": ModelSpec.decoder(2, 64, 4, vocabulary_size=61, max_sequence_length=64).changed(
        architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=48
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("bfloat16", 0.05)])
def test_serving_equals_the_cpu(name: str, dtype: str, tolerance: float) -> None:
    """Prompts, forks, swaps and chunks beside decodes; in bfloat16 by FlashInfer where it is installed."""
    served = ServedModel(SERVED[name], RandomValues(2), dtype, Path("."))
    options = RunnerOptions(dtype=dtype, block_tokens=16, num_blocks=96, num_host_blocks=8)
    expected = served_work(TorchRunner(served, options))
    found = served_work(TorchRunner(served, replace(options, device="cuda")))
    scale = max(float(np.abs(one).max()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
