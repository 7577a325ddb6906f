"""Experts with a capacity drop, in every layout that has whole sequences, the very choices that one process drops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder, PlainMixture
from tests.covering import always
from tests.planned_case import AFTER_ADAMW, BATCH, GRADIENTS, MODELS, Planned
from tests.training_case import SEQUENCE, largest_difference
from torch import Tensor

from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.expert.capacity import kept_choices
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.error import ExecutionError, PlanError, SpecError
from meshwright.specs.training.expert_capacity import DROPS, ExpertCapacity
from meshwright.specs.training.recipe import Recipe
from meshwright.specs.training.router_losses import RouterLosses
from meshwright.stage.operator.expert import INDEX_BYTES

POSITION, PROBABILITY = ExpertCapacity(0.75), ExpertCapacity(0.75, "probability")


def planned(model: str = "mixtral of 4", **choices: object) -> Planned:
    return Planned(model, choices=choices)


def shared(model: str = "mixtral of 4", **choices: object) -> Planned:
    """Devices along cp tell each other where their tokens go."""
    return planned(model, passes=("share_choices",), **choices)


def _kept(gates_S: Tensor, most: int, drop: str) -> list[int]:
    """Tokens of a sequence that an expert keeps, of those that chose it."""
    chosen = [token for token, gate in enumerate(gates_S.tolist()) if gate > 0]
    ranked = sorted(chosen, key=lambda token: -gates_S[token].item()) if drop == "probability" else chosen
    return ranked[:most]


def _expected(case: Planned, capacity: ExpertCapacity) -> tuple[float, int, dict[str, Tensor]]:
    """Loss, number of dropped choices, and all gradients of the first step; experts and sequences one by one."""
    model, found = MODELS[case.model], []
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(model)
    finally:
        torch.set_default_dtype(before)
    plain.load_state_dict(build_model(model, torch.float64).state_dict())

    def limited(mixture: PlainMixture, x_BSE: Tensor) -> Tensor:
        gates_BSX = PlainMixture._gates(mixture, x_BSE)
        kept_BSX, experts = torch.zeros_like(gates_BSX), mixture.experts
        most = math.ceil(
            capacity.factor * experts.num_experts_per_token * x_BSE.shape[1] / experts.num_experts
        )
        for sequence in range(len(gates_BSX)):
            for expert in range(experts.num_experts):
                kept_BSX[sequence, _kept(gates_BSX[sequence, :, expert], most, capacity.drop), expert] = 1.0
        found.append(int((gates_BSX > 0).sum() - kept_BSX.sum()))
        return gates_BSX * kept_BSX

    for module in plain.modules():
        if isinstance(module, PlainMixture):
            module._gates = limited.__get__(module)
    tokens_BS, targets_BS = RandomTokens(model.vocabulary_size).batch(0, 0, range(case.batch), SEQUENCE)
    loss = F.cross_entropy(plain(tokens_BS).flatten(0, 1), targets_BS.flatten())
    loss.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    return loss.item(), sum(found), gradients


CASES = [
    (planned(), POSITION),
    (planned("qwen moe", dp=2, ep=2), PROBABILITY),
    (planned("folded deepseek", dp=2, etp=2, ep=1), POSITION),
    (planned("folded qwen moe", tp=2, etp=2, ep=1), PROBABILITY),  # both devices drop, and one half counts
    (planned("mixtral", dp=2), ExpertCapacity(0.01)),  # one token of a sequence for each expert
    (planned("gpt oss", pp=2, dp=2, ep=2, schedule="1f1b", recompute="full"), PROBABILITY),
    (planned("deepseek", dp=2, ep=2, sharding="zero3", split_backward=True), PROBABILITY),
    (planned("folded mixtral", dp=4, ep=2, etp=2, sharding="zero2"), POSITION),
    (planned("folded mixtral", dp=4, ep=4, ep_near=2), PROBABILITY),
    (planned("folded mixtral", dp=4, ep=4, ep_near=2, dispatch="once"), PROBABILITY),
    (planned("qwen moe", dp=2, ep=2, dispatch="once"), POSITION),
    (planned("qwen moe", tp=2, sequence_parallel=True), POSITION),
    (planned("folded deepseek", tp=2, dp=2, etp=2, ep=2), POSITION),
    (planned("folded qwen moe", tp=2, etp=1, ep=2, microbatch_size=2), PROBABILITY),  # a sample each
    (planned("folded mixtral", tp=2, dp=2, etp=4, microbatch_size=2), POSITION),
    (planned("folded deepseek", tp=2, dp=2, etp=1, ep=4, microbatch_size=2, dispatch="once"), POSITION),
    (planned("qwen moe", dp=2, ep=2, microbatch_size=2, token_parts=2), PROBABILITY),
    (shared(cp=2, ep=2), PROBABILITY),
    (shared(cp=2), POSITION),
    (shared(cp=2, ep=2, token_layout="contiguous"), POSITION),
    (shared(cp=2, token_layout="stripe", context="all_gather"), PROBABILITY),
    (shared("folded mixtral", cp=2, tp=2, etp=2, ep=2), PROBABILITY),
    (shared("folded qwen moe", cp=2, tp=2), POSITION),  # both of tp drop, and one half counts
    (shared("folded deepseek", cp=2, tp=2, etp=1, ep=4, microbatch_size=2), PROBABILITY),
    (
        shared("folded qwen moe", cp=2, dp=2, ep=4, ep_near=2, sharding="zero3", context="ulysses"),
        PROBABILITY,
    ),
    (shared("folded mixtral", cp=4, ep=2, etp=2, ulysses=2), POSITION),
    (shared("deepseek", pp=2, cp=2, ep=2, schedule="1f1b", recompute="full"), PROBABILITY),
    (shared("qwen moe", cp=2, ep=2, dispatch="once", split_backward=True), PROBABILITY),
    (shared("qwen moe", cp=2, ep=2, microbatch_size=2, token_parts=2, recompute="selective"), POSITION),
    (shared("qwen moe", tp=2, ep=2, sequence_parallel=True), PROBABILITY),  # parts of each sequence along tp
    (shared("folded qwen moe", tp=2, etp=1, ep=2, microbatch_size=1), POSITION),  # half a sample each
    (shared("folded mixtral", tp=2, cp=2, ep=2, etp=2, sequence_parallel=True), PROBABILITY),
    (shared("folded mixtral", tp=2, cp=2, sequence_parallel=True, microbatch_size=2), POSITION),
    (shared("folded deepseek", tp=2, cp=2, etp=1, ep=4, microbatch_size=1), PROBABILITY),
    (
        shared("qwen moe", tp=2, dp=2, ep=2, sequence_parallel=True, sharding="zero3", recompute="full"),
        POSITION,
    ),
    (shared("folded qwen moe", tp=4, etp=2, ep=2, microbatch_size=1), PROBABILITY),
    (
        shared("folded mixtral", pp=2, cp=2, ep=2, schedule="dualpipe_v", overlap=("reduce", "ep")),
        PROBABILITY,
    ),
]


@pytest.mark.parametrize(("case", "capacity"), always(CASES, {1, 3, 17}), ids=str)
def test_they_equal_those_of_one_process(case: Planned, capacity: ExpertCapacity, gloo_pool: Pool) -> None:
    capacity.check(case.plan())
    result = case.run(gloo_pool, 1, capacity=capacity)
    loss, num_dropped, gradients = _expected(case, capacity)
    assert result.losses[0] == pytest.approx(loss, rel=GRADIENTS)
    assert result.iterations[0].num_dropped == num_dropped > 0
    assert largest_difference(result.gradients[0], gradients) < GRADIENTS


@pytest.mark.parametrize(
    "given",
    [
        {"capacity": POSITION, "router": RouterLosses(balance=0.5, z=0.1)},
        pytest.param({"capacity": PROBABILITY}, marks=pytest.mark.slow),
    ],
    ids=["position, balanced", "probability"],
)
def test_steps_of_shared_sequences_are_those_of_one_process(given: dict[str, Any], gloo_pool: Pool) -> None:
    """Losses, norms and parameters of three steps, what is balanced among them. Numbers of what is told are counted: of every
    token of the other rank two experts, and two gates where they decide."""
    ours, alone = (case.run(gloo_pool, 3, **given) for case in (shared(cp=2, ep=2), planned()))
    assert ours.losses == pytest.approx(alone.losses, rel=AFTER_ADAMW)
    for name in ("gradient_norm", "router_loss", "num_dropped"):
        found, wanted = ([getattr(each, name) for each in one.iterations] for one in (ours, alone))
        assert found == pytest.approx(wanted, rel=AFTER_ADAMW), name
    assert largest_difference(ours.parameters, alone.parameters) < AFTER_ADAMW
    numbers, layers, steps = (4 if given["capacity"] == PROBABILITY else 2), 4, 3
    told = steps * layers * BATCH * SEQUENCE // 2 * numbers * INDEX_BYTES
    assert [sent["GATHER_CHOSEN"] for sent in ours.sent_bytes] == [told, told]


def test_a_large_capacity_drops_nothing(gloo_pool: Pool) -> None:
    case = planned(dp=2, ep=2)
    limited, dropless = case.run(gloo_pool, 1, capacity=ExpertCapacity(4.0)), case.run(gloo_pool, 1)
    assert limited.iterations[0].num_dropped == dropless.iterations[0].num_dropped == 0
    assert largest_difference(limited.gradients[0], dropless.gradients[0]) < GRADIENTS


def test_a_loss_that_balances_counts_what_was_chosen(gloo_pool: Pool) -> None:
    losses, case = RouterLosses(balance=0.5), planned(dp=2, ep=2)
    limited = case.run(gloo_pool, 1, capacity=ExpertCapacity(4.0), router=losses).iterations[0]
    assert limited.router_loss == pytest.approx(
        case.run(gloo_pool, 1, router=losses).iterations[0].router_loss
    )


def test_choices_that_are_kept() -> None:
    """Two sequences of three tokens; of each expert the first, or the one with the largest gate, of equal ones the first."""
    experts_TK = torch.tensor([[0, 1], [0, 2], [1, 0], [2, 0], [0, 2], [0, 1]])
    gates_TK = torch.tensor([[0.2, 0.5], [0.7, 0.3], [0.5, 0.1], [0.4, 0.6], [0.9, 0.4], [0.9, 0.1]])
    first = [[True, True], [False, True], [False, False], [True, True], [False, False], [False, True]]
    largest = [[False, True], [True, True], [False, False], [True, False], [True, False], [False, True]]
    assert kept_choices(experts_TK, 3, 3, 1).tolist() == first
    assert kept_choices(experts_TK, 3, 3, 1, gates_TK).tolist() == largest
    assert kept_choices(experts_TK, 3, 3, 3, gates_TK).all()


def test_a_capacity_is_rounded_up() -> None:
    assert ExpertCapacity(1.1).of_sequence(10, 4, 4) == 11  # 1.1 * 10 is above 11 in binary
    assert ExpertCapacity(1.0).of_sequence(9, 4, 2) == 5
    assert not ExpertCapacity()


@pytest.mark.parametrize("capacity", [POSITION, PROBABILITY], ids=DROPS)
@pytest.mark.parametrize(
    "choices",
    [
        {"cp": 2},
        {"tp": 2, "ep": 2, "sequence_parallel": True},
        {"tp": 2, "etp": 1, "ep": 2, "microbatch_size": 1},
        {"token_parts": 2, "parts_of": "sequence"},
        {"tp": 2, "ep": 2, "sequence_parallel": True, "token_parts": 2, "parts_of": "sequence"},
    ],
    ids=str,
)
def test_parts_of_sequences_have_no_capacity(capacity: ExpertCapacity, choices: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="see a part of one") as caught:
        capacity.check(planned(**choices).plan())
    assert caught.value.next
    ExpertCapacity().check(planned(**choices).plan())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="has none"):
        POSITION.check(planned("llama").plan())
    with pytest.raises(SpecError, match="factor of -1"):
        Recipe(capacity_factor=-1.0)
    with pytest.raises(SpecError, match="position or probability"):
        Recipe(capacity_factor=1.0, drop="weight")
    with pytest.raises((SpecError, ExecutionError), match="has none"):
        planned("llama").job(1, capacity=POSITION)
