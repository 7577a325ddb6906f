"""Experts fold the devices of a stage in a way of their own: whatever the two foldings, training is that of one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.rank_training import TrainingState
from meshwright.specs.error import PlanError
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.mesh import device_order
from tests import planned_case
from tests.covering import always, slow_cases
from tests.executor.checkpoint.stored_case import stored
from tests.executor.test_expert_layouts import NUMBER_BYTES, ONE_SIDED, rows_of_samples
from tests.planned_case import AFTER_ADAMW, BATCH, MODELS, Planned, assert_equal_to_one_process
from tests.training_case import ADAMW, SEQUENCE, largest_difference, reference

ITERATIONS = 2
ROUNDING = 1e-13  # of sums of float64 whose order may change from run to run
ATTENTION, EXPERTS = ("tp", "cp", "dp"), ("etp", "ep")


def foldings(product: int) -> Iterator[tuple[int, int, int]]:
    """All that have a product."""
    whole = range(1, product + 1)
    return (each for each in itertools.product(whole, whole, whole) if each[0] * each[1] * each[2] == product)


def folded_layouts(product: int, **more: Any) -> Iterator[dict[str, Any]]:
    """Every (tp, cp, dp) with every (etp, ep, edp)."""
    for attention, experts in itertools.product(foldings(product), foldings(product)):
        yield (
            dict(zip(ATTENTION, attention, strict=True)) | dict(zip(EXPERTS, experts[:2], strict=True)) | more
        )


def planned(model: str = "folded mixtral", clip: float = 0.0, **choices: Any) -> Planned:
    return Planned(model, clip, choices=choices)


CASES = [
    planned("folded qwen moe", 0.1, tp=4, etp=1, ep=1, sequence_parallel=True),
    planned("folded mixtral", 0.1, tp=2, cp=2, etp=4, ep=1),
    planned("folded deepseek", 0.1, tp=2, dp=2, etp=1, ep=2, sharding="zero3"),
    planned("folded qwen moe", 0.1, dp=4, etp=2, ep=2, split_backward=True),
    planned("folded qwen moe", 0.1, cp=4, etp=2, ep=1),  # a ring around an axis that experts cut
    planned("folded mixtral", 0.1, pp=2, dp=2, etp=2, ep=1, recompute="full"),
    planned("folded qwen moe", dp=4, etp=2, ep=2, microbatch_size=2, token_parts=2),
    planned(
        "folded mixtral", tp=2, dp=2, etp=4, ep=1, sequence_parallel=True, microbatch_size=2, token_parts=2
    ),
    planned("folded mixtral", tp=2, cp=2, etp=1, ep=2, context="all_gather", recompute="selective"),
]


@pytest.mark.parametrize("case", always(CASES, {0, 2, 6}), ids=str)
def test_folded_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize(
    "choices",
    always(
        [
            {"dp": 4, "etp": 2, "ep": 2},
            {"dp": 2, "tp": 2, "etp": 1, "ep": 4},
            {"tp": 2, "dp": 2, "etp": 4, "ep": 1, "sequence_parallel": True},
            {"dp": 4, "etp": 1, "ep": 4, "sharding": "zero3"},
            {"tp": 2, "dp": 2, "etp": 2, "ep": 2, "sequence_parallel": True},
        ],
        {0, 4},
    ),
    ids=str,
)
def test_one_sided_routing(choices: dict[str, Any], gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert without a row in the whole step, another with all, and devices that get none."""
    model = ONE_SIDED.changed(num_kv_heads=4)
    monkeypatch.setitem(planned_case.MODELS, "one-sided", model)  # type: ignore[arg-type]
    rows = rows_of_samples(model)
    assert (rows.sum(0) == 0).any() and (rows.sum(0) == BATCH * SEQUENCE).any()
    case = planned("one-sided", **choices)
    assert_equal_to_one_process(case, case.run(gloo_pool, 1), 1)


def test_as_many_bytes_are_sent_as_the_foldings_say(gloo_pool: Pool) -> None:
    """Experts over two devices of four, in two parts each: rows cross along ep where their expert is, then every row that
    came goes to the one other device that has the other part of its expert, and a term of its result comes back. Gradients
    do the same."""
    model = MODELS["folded mixtral"]
    rows = rows_of_samples(model)  # [samples, blocks, experts]
    of_rank = rows.view(4, BATCH // 4, model.num_layers, 2, -1).sum(
        (1, 2, 4)
    )  # rows of a rank for either half of the experts
    result = planned("folded mixtral", dp=4, etp=2, ep=2).run(gloo_pool, 1)
    row_bytes = model.hidden_size * NUMBER_BYTES
    for rank, sent in enumerate(result.sent_bytes):
        half, other = rank // 2, (rank + 2) % 4  # etp is innermost; the other end along ep
        crossing = int(of_rank[rank, 1 - half] + of_rank[other, half])
        assert sent["ROUTE"] == 2 * crossing * row_bytes
        came = int(of_rank[rank, half] + of_rank[other, half])
        beside = int(of_rank[rank ^ 1, half] + of_rank[other ^ 1, half])
        assert sent["GATHER_ROWS"] == 2 * came * row_bytes, "forward, and the gradient of scattered results"
        assert sent["SCATTER_ROWS"] == 2 * beside * row_bytes


def test_rows_in_two_levels_are_the_same_rows(gloo_pool: Pool) -> None:
    """2DH of two "nodes" of two (Hwang et al. 2022, arXiv 2206.03382): neighbours collect what goes to their place in the
    other node; gradients are those of one exchange, and no row crosses nodes twice."""
    model, choices = MODELS["folded mixtral"], {"dp": 4, "ep": 4}
    plain = planned("folded mixtral", **choices).run(gloo_pool, 1)
    case = planned("folded mixtral", **choices, ep_near=2)
    found = case.run(gloo_pool, 1)
    assert_equal_to_one_process(case, found, 1)
    assert largest_difference(found.gradients[0], plain.gradients[0]) < ROUNDING
    to = (
        rows_of_samples(model).view(4, BATCH // 4, model.num_layers, 4, -1).sum((1, 2, 4))
    )  # rows of a rank for another
    row_bytes = model.hidden_size * NUMBER_BYTES
    for rank, sent in enumerate(found.sent_bytes):
        node, place = divmod(rank, 2)
        near = [2 * other + 1 - place for other in range(2)]  # of its rows, those that a neighbour collects
        far = [2 * node + n for n in range(2)]  # whose rows it takes across
        there = sum(int(to[rank, target]) for target in near)
        across = sum(int(to[source, 2 * (1 - node) + place]) for source in far)
        # rows come back the same way: what a neighbour, or the other node, has sent here
        back = sum(int(to[rank ^ 1, 2 * other + place]) for other in range(2))
        back += sum(int(to[2 * (1 - node) + n, rank]) for n in range(2))
        assert sent["ROUTE"] == 2 * (there + across + back) * row_bytes


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": 4, "ep": 4, "etp": 1, "ep_near": 2},
        {"tp": 2, "dp": 2, "ep": 4, "etp": 1, "ep_near": 2, "sequence_parallel": True, "sharding": "zero3"},
        {"cp": 4, "ep": 4, "ep_near": 2, "context": "all_gather"},
        {"dp": 4, "ep": 4, "ep_near": 2, "microbatch_size": 2, "token_parts": 2, "split_backward": True},
    ],
    ids=str,
)
@pytest.mark.slow
def test_two_levels_in_other_layouts(choices: dict[str, Any], gloo_pool: Pool) -> None:
    case = planned("folded qwen moe", 0.1, **choices)
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("num_experts", [1, 2])
@pytest.mark.parametrize("r", always([0, 1, 2, 4], {1, 2}))
def test_parallelism_that_is_switched_at_no_cost(
    r: int, num_experts: int, gloo_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tutel's sweep of r on four processes (Hwang et al. 2022, arXiv 2206.03382): r = 0 gathers all experts' values on every
    device; else every expert has 4 / E devices, r of which divide its matrices, and the others gather the values of their
    parts. So r is etp, replicas gather by ZeRO-3, and what does not fit into 4 / E is refused."""
    name = f"{num_experts} experts"
    of = {"num_experts": num_experts, "num_experts_per_token": 1}
    monkeypatch.setitem(planned_case.MODELS, name, MODELS["folded qwen moe"].changed(**of))  # type: ignore[arg-type]
    if r * num_experts > 4:
        with pytest.raises(PlanError, match="does not divide"):
            planned(name, dp=4, ep=num_experts, etp=r).plan()
        return
    ep = num_experts if r else 1
    case = planned(name, dp=4, ep=ep, etp=max(1, r), sharding="zero3")
    assert case.plan().expert_dp == 4 // (ep * max(1, r))
    assert_equal_to_one_process(case, case.run(gloo_pool, 1), 1)


@pytest.mark.parametrize(
    "choices",
    [
        {"dp": 4, "etp": 2, "ep": 2},
        {"tp": 2, "cp": 2, "etp": 4},
        {"tp": 2, "dp": 2, "etp": 1, "ep": 2, "sequence_parallel": True},
        {"cp": 4, "etp": 1, "ep": 2},
        {"pp": 2, "tp": 2, "etp": 1},
    ],
    ids=str,
)
def test_a_rank_holds_its_share_of_the_parameters(choices: dict[str, Any]) -> None:
    job, plan = planned("folded qwen moe", **choices).job(1)
    assert job.training is not None
    for rank in range(plan.num_devices):
        state = TrainingState(job.training, job.program, rank, torch.float64, torch.device("cpu"))
        expected = sum(sum(num_local_parameters(plan, plan.stages()[stage])) for stage in state.stages)
        assert sum(tensor.numel() for tensor in state.tensors()) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    always(
        [
            ({"dp": 4, "etp": 2, "ep": 2, "sharding": "zero1"}, {"tp": 2, "dp": 2, "etp": 1, "ep": 2}),
            ({"tp": 2, "cp": 2, "etp": 4}, {"cp": 4, "etp": 1, "ep": 2, "sharding": "zero3"}),
            ({"pp": 2, "tp": 2, "etp": 1}, {"dp": 4, "etp": 4}),
        ],
        {},
    ),
    ids=str,
)
def test_saved_in_one_folding_loaded_in_another(
    source: dict[str, Any], target: dict[str, Any], gloo_pool: Pool, tmp_path: Path
) -> None:
    steps, folders = 2, (tmp_path / "before", tmp_path / "after")
    first = CheckpointConfig(Checkpoints(str(folders[0]), every=steps))
    second = CheckpointConfig(Checkpoints(str(folders[1])), resume_from=str(folders[0] / f"step-{steps}"))
    losses = []
    for choices, config, begin in ((source, first, 0), (target, second, steps)):
        job, plan = planned("folded qwen moe", **choices).job(steps, first_step=begin)
        losses += gloo_pool.run(replace(job, checkpoints=config), places=device_order(plan)).losses
    expected = reference(MODELS["folded qwen moe"], ADAMW, BATCH, 2 * steps)
    assert losses == pytest.approx(expected.losses, rel=AFTER_ADAMW)
    end = stored(folders[1] / f"step-{2 * steps}")
    assert largest_difference({n: end[n] for n in expected.parameters}, expected.parameters) < AFTER_ADAMW


FAMILIES = ("folded mixtral", "folded qwen moe", "folded deepseek")


def every_layout() -> list[Planned]:
    """Every (tp, cp, dp) x (etp, ep, edp) of four devices, and of two in two stages, of every family; sequence parallelism,
    sharding and how devices of cp attend take turns."""
    rows = [*folded_layouts(4), *folded_layouts(2, pp=2)]
    found, turns = [], itertools.count()
    for row, family in itertools.product(rows, FAMILIES):
        turn = next(turns)
        copies, divides = row["dp"] * row["cp"], row["tp"] > 1 and turn % 2 == 0
        more: dict[str, Any] = {"sequence_parallel": True} if divides else {}
        if copies > 1 and turn % 5:
            more["sharding"] = ("zero1", "zero2", "zero3", "none")[turn % 4]
        if row["cp"] > 1:
            more["context"] = ("ring", "all_gather", "token_ring", "ulysses")[
                turn % (4 if row["tp"] * row["cp"] <= 4 else 3)
            ]
        found.append(planned(family, 0.1 * (turn % 3 > 0), **row, **more))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(every_layout), ids=str)
def test_every_pair_of_foldings_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
