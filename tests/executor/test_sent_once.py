"""`dispatch = once`: a token's row goes once to each device, or node, that has any of its experts, and one sum comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.part.mixture import MixtureOfExperts
from meshwright.executor.training.training_job import RandomTokens
from tests import planned_case
from tests.covering import always, slow_cases
from tests.executor.test_expert_layouts import NUMBER_BYTES, ONE_SIDED, rows_of_samples
from tests.executor.test_folded_experts import FAMILIES, folded_layouts, planned
from tests.planned_case import BATCH, MODELS, Planned, assert_equal_to_one_process
from tests.training_case import SEQUENCE

ITERATIONS = 2
NUM_CHOSEN = 2  # experts a token, of all models here
INDEX_BYTES = 8


def once(model: str = "folded qwen moe", clip: float = 0.0, **choices: Any) -> Planned:
    return planned(model, clip, dispatch="once", **choices)


CASES = [
    once(clip=0.1, dp=2, ep=2),
    once("folded mixtral", 0.1, dp=4, ep=4, ep_near=2),
    once(clip=0.1, dp=4, etp=2, ep=2),
    once("folded deepseek", 0.1, tp=2, dp=2, etp=1, ep=4, sharding="zero3"),
    once("folded mixtral", 0.1, tp=2, dp=2, etp=2, ep=2, sequence_parallel=True),
    once(tp=2, etp=1, ep=2, sequence_parallel=True),
    once("folded mixtral", tp=2, dp=2, etp=2, ep=2, sharding="zero1"),
    once("folded deepseek", 0.1, cp=2, dp=2, etp=1, ep=4, context="all_gather"),
    once("gpt oss", 0.1, dp=2, ep=2),
    once("folded mixtral", 0.1, pp=2, dp=2, ep=2, split_backward=True),
    once(dp=2, ep=2, recompute="selective"),
    once("folded deepseek", dp=2, ep=2, recompute="full", sharding="zero2"),
    once(dp=2, ep=2, microbatch_size=2, token_parts=2),
    once(tp=4, ep=4, etp=1, ep_near=2),
    once("folded mixtral", 0.1, tp=2, dp=2, ep=4, etp=1, ep_near=2, sequence_parallel=True, sharding="zero3"),
    once(dp=4, ep=4, ep_near=2, microbatch_size=2, token_parts=2, split_backward=True),
    once("folded deepseek", cp=4, ep=4, ep_near=2, context="all_gather", recompute="selective"),
]


@pytest.mark.parametrize("case", always(CASES, {0, 1, 4}), ids=str)
def test_sent_once_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize(
    "choices",
    always([{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4, "ep_near": 2}, {"dp": 4, "etp": 2, "ep": 2}], {0}),
    ids=str,
)
def test_one_sided_routing(choices: dict[str, Any], gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert without a row, another with all, and devices, or nodes, to which nothing goes."""
    model = ONE_SIDED.changed(num_kv_heads=4)
    monkeypatch.setitem(planned_case.MODELS, "one-sided", model)  # type: ignore[arg-type]
    rows = rows_of_samples(model)
    assert (rows.sum(0) == 0).any() and (rows.sum(0) == BATCH * SEQUENCE).any()
    case = once("one-sided", **choices)
    assert_equal_to_one_process(case, case.run(gloo_pool, 1), 1)


def chosen_by_rank(model: str, num_ranks: int) -> Tensor:
    """Which experts every token of every rank goes to in one process: [ranks, tokens of all blocks, experts]."""
    stage, found = build_model(MODELS[model], torch.float64), list[Tensor]()
    for module in stage.modules():
        if isinstance(module, MixtureOfExperts):
            module.listeners.append(found.append)
    data = RandomTokens(MODELS[model].vocabulary_size)
    with torch.no_grad():
        for sample in range(BATCH):
            stage(data.batch(0, 0, range(sample, sample + 1), SEQUENCE)[0])
    chosen_NK = torch.cat(found).view(num_ranks, -1, NUM_CHOSEN)
    return torch.zeros(*chosen_NK.shape[:2], 4, dtype=torch.int64).scatter_(2, chosen_NK, 1)


def rows_between(chosen_RTX: Tensor, num_targets: int) -> Tensor:
    """Rows of every rank for every target, a token's once for all of its experts there: [ranks, targets]."""
    there = chosen_RTX.bool().unflatten(2, (num_targets, -1)).any(3)
    return there.sum(1)


def test_a_token_is_sent_once_to_each_device_of_its_experts(gloo_pool: Pool) -> None:
    """Two devices with two experts each: a row there has its gates behind it, the sum that comes back has none; gradients do
    the same the other way round. Which choices are there goes once."""
    model = "folded mixtral"
    chosen_RTX = chosen_by_rank(model, 2)
    to = rows_between(chosen_RTX, 2)
    copies = chosen_RTX.unflatten(2, (2, -1)).sum((1, 3))
    assert int(to[0, 1]) < int(copies[0, 1]), "some token has both of its experts there"
    result = once(model, dp=2, ep=2).run(gloo_pool, 1)
    hidden = MODELS[model].hidden_size
    for rank, sent in enumerate(result.sent_bytes):
        crossing = int(to[rank, 1 - rank]) * (hidden + NUM_CHOSEN) + int(to[1 - rank, rank]) * hidden
        back = int(to[1 - rank, rank]) * (hidden + NUM_CHOSEN) + int(to[rank, 1 - rank]) * hidden
        assert sent["ROUTE"] == (crossing + back) * NUMBER_BYTES
        assert sent["CHOICES"] == int(to[rank, 1 - rank]) * NUM_CHOSEN * INDEX_BYTES


def test_a_token_crosses_once_to_each_node_of_its_experts(gloo_pool: Pool) -> None:
    """Two "nodes" of two devices, an expert each: a row crosses once to the device at the same place of the other node, which
    forwards it, and adds up what comes back."""
    model = "folded mixtral"
    chosen_RTX = chosen_by_rank(model, 4)
    to_node = rows_between(chosen_RTX, 2)
    result = once(model, dp=4, ep=4, ep_near=2).run(gloo_pool, 1)
    hidden = MODELS[model].hidden_size
    for rank, sent in enumerate(result.sent_bytes):
        node, place = divmod(rank, 2)
        peer, neighbour = 2 * (1 - node) + place, 2 * node + 1 - place
        forwarded = sum(int(chosen_RTX[source, :, neighbour].sum()) for source in (rank, peer))
        here = sum(
            int(chosen_RTX[source, :, rank].sum()) for source in (neighbour, 2 * (1 - node) + 1 - place)
        )
        there, came = int(to_node[rank, 1 - node]) + forwarded, int(to_node[peer, node]) + here
        numbers = 2 * hidden + NUM_CHOSEN
        assert sent["ROUTE"] == (there + came) * numbers * NUMBER_BYTES
        assert sent["CHOICES"] == there * NUM_CHOSEN * INDEX_BYTES


def every_layout() -> list[Planned]:
    """Every folding of four devices in which experts are divided, families and sequence parallelism taking turns."""
    rows = [row for row in folded_layouts(4) if row["ep"] > 1]
    return [
        once(
            FAMILIES[turn % 3],
            0.1,
            **row,
            **({"sequence_parallel": True} if row["tp"] > 1 and turn % 2 else {}),
        )
        for turn, row in enumerate(rows)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(every_layout), ids=str)
def test_every_folding_sends_once(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
