"""Losses of routers are those of one process, in every layout that has whole sequences; z-losses in every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder, PlainMixture
from tests.covering import always
from tests.planned_case import GRADIENTS, MODELS, Planned
from tests.training_case import SEQUENCE, largest_difference
from torch import Tensor, nn

from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.expert.router_loss import balance_loss, z_loss
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.training.recipe import Recipe
from meshwright.specs.training.router_losses import RouterLosses

BOTH, Z_ALONE = RouterLosses(0.5, 0.25), RouterLosses(0.0, 0.25)  # large ones, so that a wrong one shows


def planned(model: str = "mixtral of 4", **choices: object) -> Planned:
    return Planned(model, choices=choices)


def shared(model: str = "mixtral of 4", **choices: object) -> Planned:
    """Devices along cp tell each other where their tokens go."""
    return planned(model, passes=("share_choices",), **choices)


def _of_one_router(losses: RouterLosses, mixture: PlainMixture, logits_BSX: Tensor) -> Tensor:
    """By the formulas of `RouterLosses`, expert by expert and sequence by sequence."""
    routing, experts = mixture.routing, mixture.experts
    scores = logits_BSX.sigmoid() if routing.scores == "sigmoid" else logits_BSX.softmax(-1)
    choice = scores + mixture.correction if routing.has_correction else scores
    chosen = mixture._open(choice).topk(experts.num_experts_per_token, -1).indices
    shares = scores / scores.sum(-1, keepdim=True)
    total = losses.z * logits_BSX.exp().sum(-1).log().pow(2).mean()
    for sequence in range(len(logits_BSX)):
        for expert in range(experts.num_experts):
            fraction = (chosen[sequence] == expert).sum() / chosen[sequence].numel()
            probability = shares[sequence, :, expert].mean()
            total = total + losses.balance * experts.num_experts * fraction * probability / len(logits_BSX)
    return total


def _expected(case: Planned, losses: RouterLosses) -> tuple[float, float, dict[str, Tensor]]:
    """Loss of tokens, of routers, and all gradients of the first step, by torch's autograd."""
    model = MODELS[case.model]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(model)
    finally:
        torch.set_default_dtype(before)
    plain.load_state_dict(build_model(model, torch.float64).state_dict())
    found: list[Tensor] = []

    def note(mixture: PlainMixture, router: nn.Module) -> None:
        router.register_forward_hook(
            lambda module, inputs, logits: found.append(_of_one_router(losses, mixture, logits))
        )

    for module in list(plain.modules()):
        if isinstance(module, PlainMixture):
            note(module, module.router)
    tokens_BS, targets_BS = RandomTokens(model.vocabulary_size).batch(0, 0, range(case.batch), SEQUENCE)
    loss = F.cross_entropy(plain(tokens_BS).flatten(0, 1), targets_BS.flatten())
    added = torch.stack(found).sum()
    (loss + added).backward()
    return (
        loss.item(),
        added.item(),
        {name: p.grad for name, p in plain.named_parameters() if p.grad is not None},
    )


CASES = [
    (planned(), BOTH),
    (planned(dp=2, ep=2), BOTH),
    (planned("qwen moe", pp=2, dp=2, schedule="1f1b", recompute="full"), BOTH),
    (planned("deepseek", dp=2, ep=2, sharding="zero2", split_backward=True), BOTH),
    (planned("qwen moe", tp=2), BOTH),
    (planned("qwen moe", tp=2, sequence_parallel=True), BOTH),
    (planned("qwen moe", tp=2, ep=2, sequence_parallel=True), Z_ALONE),
    (planned(cp=2, ep=2), Z_ALONE),
    (planned("qwen moe", dp=2, ep=2, dispatch="once"), BOTH),
    (shared(cp=2, ep=2), BOTH),
    (shared("qwen moe", cp=2, context="ulysses"), BOTH),
    (shared("deepseek", cp=2, dp=2, ep=2, token_layout="contiguous", recompute="full"), BOTH),
    (shared("qwen moe", tp=2, ep=2, sequence_parallel=True, microbatch_size=2), BOTH),
    (shared("folded qwen moe", tp=2, etp=1, ep=2, microbatch_size=1), BOTH),
    (shared("folded mixtral", tp=2, cp=2, ep=2, etp=2, sequence_parallel=True), BOTH),
    (shared("folded qwen moe", tp=2, cp=2, etp=1, ep=2, microbatch_size=2), BOTH),
    (planned("folded qwen moe", tp=2, etp=1, ep=2, microbatch_size=2), BOTH),  # a sample each
    (planned("folded deepseek", tp=2, dp=2, etp=1, ep=4, microbatch_size=2, dispatch="once"), BOTH),
]


@pytest.mark.parametrize(("case", "losses"), always(CASES, range(9)), ids=str)
def test_they_equal_those_of_one_process(case: Planned, losses: RouterLosses, gloo_pool: Pool) -> None:
    losses.check(case.plan())
    result = case.run(gloo_pool, 1, router=losses)
    loss, added, gradients = _expected(case, losses)
    assert result.losses[0] == pytest.approx(loss, rel=GRADIENTS)
    assert result.iterations[0].router_loss == pytest.approx(added, rel=GRADIENTS)
    assert largest_difference(result.gradients[0], gradients) < GRADIENTS
    without = case.run(gloo_pool, 1)
    assert without.iterations[0].router_loss == 0.0
    assert largest_difference(without.gradients[0], gradients) > 1e-6


@pytest.mark.parametrize("choices", [{"cp": 2}, {"tp": 2, "ep": 2, "sequence_parallel": True}], ids=str)
def test_parts_of_sequences_are_not_balanced(choices: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="see a part of one") as caught:
        BOTH.check(planned(**choices).plan())
    assert caught.value.next
    Z_ALONE.check(planned(**choices).plan())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="has none"):
        BOTH.check(planned("llama").plan())
    with pytest.raises(SpecError, match=r"balance loss times -1"):
        Recipe(balance_loss=-1.0)
    assert not replace(BOTH, balance=0.0, z=0.0)


def test_losses_of_alike_and_of_one_sided_experts() -> None:
    """One where all experts are alike, as many as there are experts where one has all."""
    alike_TX, one_TX = torch.full((8, 4), 0.25), torch.eye(4)[[2] * 8]
    evenly_TK, one_TK = torch.arange(8)[:, None] % 4, torch.full((8, 1), 2)
    alike_BX, one_BX = (each.view(2, 4, 4).sum(1) for each in (alike_TX, one_TX))
    assert float(balance_loss(alike_BX, evenly_TK, 4)) == 8 * 1.0
    assert float(balance_loss(one_BX, one_TK, 4)) == 8 * 4.0
    assert float(z_loss(torch.zeros(8, 1))) == 0.0
