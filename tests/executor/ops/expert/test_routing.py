"""Routing rules of published models against their own code, in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.executor.ops.expert.routing import chosen_experts, route
from meshwright.specs.model.block import Routing

NUM_TOKENS, HIDDEN, NUM_EXPERTS, NUM_PER_TOKEN = 40, 6, 8, 3
GENERATOR = torch.Generator().manual_seed(4)
HIDDEN_TE = torch.randn(NUM_TOKENS, HIDDEN, generator=GENERATOR, dtype=torch.float64)
ROUTER_XE = torch.randn(NUM_EXPERTS, HIDDEN, generator=GENERATOR, dtype=torch.float64)
CORRECTION_X = torch.randn(NUM_EXPERTS, generator=GENERATOR, dtype=torch.float64)


def _expected(routing: Routing, correction_X: Tensor | None) -> Tensor:
    """Gates of all experts [T, X], zero where a token does not go: one token after the other."""
    gates_TX = torch.zeros(NUM_TOKENS, NUM_EXPERTS, dtype=torch.float64)
    size = NUM_EXPERTS // routing.num_groups
    for token, hidden_E in enumerate(HIDDEN_TE):
        logits_X = ROUTER_XE @ hidden_E
        scores_X = logits_X.exp() / logits_X.exp().sum()
        if routing.scores == "sigmoid":
            scores_X = 1 / (1 + (-logits_X).exp())
        choice = (scores_X if correction_X is None else scores_X + correction_X).tolist()
        best = 2 if routing.has_correction else 1
        groups = [sorted(choice[g * size : (g + 1) * size])[-best:] for g in range(routing.num_groups)]
        order = sorted(range(routing.num_groups), key=lambda g: -sum(groups[g]))
        is_open = [x // size in order[: routing.num_groups_per_token] for x in range(NUM_EXPERTS)]
        ranked = sorted((x for x in range(NUM_EXPERTS) if is_open[x]), key=lambda x: -choice[x])
        for expert in ranked[:NUM_PER_TOKEN]:
            gates_TX[token, expert] = scores_X[expert]
        if routing.has_unit_sum:
            gates_TX[token] /= gates_TX[token].sum()
    return gates_TX * routing.gate_scale


@pytest.mark.parametrize(
    "routing",
    [
        Routing(),
        Routing(has_unit_sum=False, gate_scale=16.0),
        Routing(num_groups=4, num_groups_per_token=2, has_unit_sum=False),
        Routing("sigmoid", 4, 2, has_correction=True, gate_scale=2.5),
        Routing("sigmoid", has_correction=True),
    ],
    ids=str,
)
def test_gates_are_those_of_the_rule(routing: Routing) -> None:
    correction_X = CORRECTION_X if routing.has_correction else None
    gates_TK, experts_TK = route(HIDDEN_TE, ROUTER_XE, NUM_PER_TOKEN, routing, correction_X)
    found_TX = torch.zeros(NUM_TOKENS, NUM_EXPERTS, dtype=torch.float64).scatter(1, experts_TK, gates_TK)
    torch.testing.assert_close(found_TX, _expected(routing, correction_X), rtol=0, atol=1e-12)


def test_a_correction_chooses_and_does_not_weigh() -> None:
    routing = Routing("sigmoid", has_correction=True, has_unit_sum=False)
    correction_X = torch.zeros(NUM_EXPERTS, dtype=torch.float64)
    correction_X[5] = 10.0
    gates_TK, experts_TK = route(HIDDEN_TE, ROUTER_XE, NUM_PER_TOKEN, routing, correction_X)
    assert (experts_TK[:, 0] == 5).all()
    torch.testing.assert_close(gates_TK[:, 0], (HIDDEN_TE @ ROUTER_XE[5]).sigmoid(), rtol=0, atol=1e-12)
    free_TK = chosen_experts((HIDDEN_TE @ ROUTER_XE.t()).sigmoid(), NUM_PER_TOKEN, routing)
    assert not (free_TK[:, 0] == 5).all()


def test_scores_of_half_precision_are_made_in_float32() -> None:
    """The gates of one token sum to one but for the last rounding, which a softmax in bfloat16 misses."""
    gates_TK, _ = route(HIDDEN_TE.bfloat16(), ROUTER_XE.bfloat16(), NUM_EXPERTS, Routing(has_unit_sum=False))
    assert gates_TK.dtype == torch.bfloat16
    logits_TX = HIDDEN_TE.bfloat16() @ ROUTER_XE.bfloat16().t()
    expected_TX = logits_TX.float().softmax(1).sort(1, descending=True).values
    assert torch.equal(gates_TK, expected_TX.bfloat16())
