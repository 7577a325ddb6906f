"""Experts stand where a placement says, another permutation in every layer: the same training, other rows sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwright.api.subjects.routing import with_placed_experts
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape, of_devices
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.stage.mesh import device_order
from tests.covering import always
from tests.executor.checkpoint.stored_case import stored
from tests.executor.test_expert_layouts import NUMBER_BYTES, rows_of_samples
from tests.planned_case import AFTER_ADAMW, BATCH, MODELS, Planned, assert_equal_to_one_process
from tests.training_case import ADAMW, largest_difference, reference

ITERATIONS = 2


def planned(model: str, clip: float = 0.0, **choices: Any) -> Planned:
    return Planned(model, clip, choices=choices)


def expert_layers(model: ModelSpec) -> tuple[int, ...]:
    return tuple(number for number, block in enumerate(model.layers) if block.experts is not None)


def shuffled(model: ModelSpec, num_devices: int, seed: int = 1) -> ExpertPlacement:
    """Experts of every layer in a drawn order of its own, not all on the device that has them by number."""
    assert model.experts is not None
    layers, numbers = expert_layers(model), np.arange(model.experts.num_experts)
    experts = np.random.default_rng(seed).permuted(np.tile(numbers, (len(layers), 1)), axis=1)
    found = ExpertPlacement(experts, num_devices, layers)
    assert len({tuple(row) for row in experts.tolist()}) == len(layers)
    assert (found.devices != numbers * num_devices // len(numbers)).any()
    return found


def run(
    case: Planned, pool: Pool, iterations: int, placement: ExpertPlacement | None, **fields: Any
) -> JobResult:
    job, plan = case.job(iterations, **fields)
    return pool.run(with_placed_experts(job, plan, placement), places=device_order(plan))


CASES = [
    planned("qwen moe", 0.1, dp=2, ep=2, sharding="zero3"),  # of six experts, two of four layers dense
    planned("folded qwen moe", 0.1, dp=4, etp=2, ep=2, sharding="zero1"),
    planned("folded mixtral", 0.1, dp=4, ep=4, ep_near=2),
    planned("folded deepseek", 0.1, pp=2, dp=2, ep=2, schedule="zb_h1"),
    planned("folded mixtral", 0.1, dp=4, ep=4, ep_near=2, dispatch="once"),
    planned("qwen moe of 4", 0.1, dp=2, tp=2, ep=4, sequence_parallel=True, sharding="zero1"),
    planned("folded mixtral", 0.1, tp=2, cp=2, etp=1, ep=2, context="all_gather", recompute="selective"),
    planned("gpt oss", 0.1, dp=2, ep=2, sharding="zero1"),  # biases of experts
    planned("folded qwen moe", dp=4, ep=2, microbatch_size=2, token_parts=2, sharding="zero3"),
    planned("mixtral of 4", pp=2, tp=2, ep=2, sequence_parallel=True, recompute="full"),
    planned("folded mixtral", 0.1, dp=4, ep=4, ep_near=2, dispatch="once"),
    planned("folded qwen moe", 0.1, dp=4, ep=4, dispatch="once"),
]


@pytest.mark.parametrize("case", always(CASES, {0, 1, 2}), ids=str)
def test_placed_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    placement = shuffled(MODELS[case.model], case.plan().ep)
    assert_equal_to_one_process(case, run(case, gloo_pool, ITERATIONS, placement), ITERATIONS)


def near_rows(of_rank_GLX: Tensor, layers: tuple[int, ...]) -> ExpertPlacement:
    """For two devices: on the first those experts that it has more rows for than the other, half of every layer's."""
    more_LX = of_rank_GLX[1] - of_rank_GLX[0]
    order_LX = more_LX.argsort(dim=1, stable=True)
    devices = torch.zeros_like(order_LX).scatter_(1, order_LX[:, order_LX.shape[1] // 2 :], 1)
    return of_devices(devices.numpy(), GroupShape(2), layers)


def crossing(of_rank_GLX: Tensor, placement: ExpertPlacement) -> int:
    """Rows whose expert is on the other device."""
    own_GLX = torch.from_numpy(placement.copies).transpose(0, 1)
    return int((of_rank_GLX * (1 - own_GLX)).sum())


def test_rows_that_stay_on_the_device_are_not_sent(gloo_pool: Pool) -> None:
    """Both processes know where their tokens go: with experts where most of their rows are, fewer cross, and what is sent
    is those rows by the closed form, to the experts, back, and the gradients of both."""
    case, model = planned("mixtral of 4", dp=2, ep=2), MODELS["mixtral of 4"]
    rows = rows_of_samples(model)  # [samples, blocks, experts]
    of_rank_GLX = rows.view(2, BATCH // 2, model.num_layers, -1).sum(1)
    layers = expert_layers(model)
    near = near_rows(of_rank_GLX, layers)
    contiguous = of_devices(np.tile([0, 0, 1, 1], (len(layers), 1)), GroupShape(2), layers)
    sent = {}
    for name, placement, given in (("near", near, near), ("contiguous", contiguous, None)):
        result = run(case, gloo_pool, 1, given)
        sent[name] = [each["ROUTE"] for each in result.sent_bytes]
        expected = 2 * crossing(of_rank_GLX, placement) * model.hidden_size * NUMBER_BYTES
        assert sent[name] == [expected, expected], "rows of one are results of the other"
    assert sum(sent["near"]) < sum(sent["contiguous"])
    far = ExpertPlacement(
        near.experts[:, ::-1].copy(), 2, layers
    )  # each half where the fewest of its rows are
    assert crossing(of_rank_GLX, far) > crossing(of_rank_GLX, contiguous)


def test_saved_in_one_placement_loaded_in_another(gloo_pool: Pool, tmp_path: Path) -> None:
    """Checkpoints know nothing of it: from one permutation to another, and to neighbouring experts, in other layouts."""
    model, steps = MODELS["folded qwen moe"], 1
    stages = (
        ({"dp": 4, "etp": 2, "ep": 2, "sharding": "zero1"}, shuffled(model, 2, 1)),
        ({"tp": 2, "dp": 2, "etp": 1, "ep": 4, "sharding": "zero3"}, shuffled(model, 4, 2)),
        ({"dp": 2, "ep": 2}, None),
    )
    before, losses = "", []
    for number, (choices, placement) in enumerate(stages):
        folder = tmp_path / str(number)
        kept = CheckpointConfig(Checkpoints(str(folder), every=steps), resume_from=before)
        job, plan = planned("folded qwen moe", **choices).job(steps, first_step=number * steps)
        job = with_placed_experts(replace(job, checkpoints=kept), plan, placement)
        losses += gloo_pool.run(job, places=device_order(plan)).losses
        before = str(folder / f"step-{(number + 1) * steps}")
        expected = reference(model, ADAMW, BATCH, (number + 1) * steps)
        end = stored(Path(before))
        assert largest_difference({n: end[n] for n in expected.parameters}, expected.parameters) < AFTER_ADAMW
    assert losses == pytest.approx(expected.losses, rel=AFTER_ADAMW)
