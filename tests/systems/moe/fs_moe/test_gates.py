"""Routing functions beside their formulas on cases small enough to check by hand; who is kept by chance, exactly."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from meshwright.specs.error import SpecError
from meshwright.systems.moe.fs_moe import gates

LOGITS = torch.log(
    tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], dtype=torch.float64)
)  # whose softmax is as written


def test_gshard_is_the_two_best_over_their_sum() -> None:
    found = gates.gshard(LOGITS)
    assert found.experts_TK.tolist() == [[1, 2], [0, 2]]
    wanted = tensor([[2 / 3, 1 / 3], [5 / 8, 3 / 8]], dtype=torch.float64)
    torch.testing.assert_close(found.gates_TK, wanted, rtol=1e-12, atol=0)


def test_the_second_expert_is_kept_with_twice_its_gate() -> None:
    """Of n drawings k are kept: within six standard deviations of the binomial, and always where twice its gate is one."""
    num, second = 20_000, 0.2
    logits = torch.log(tensor([[1 - second, second, 1e-30]], dtype=torch.float64)).expand(num, -1)
    found = gates.gshard(logits, torch.Generator().manual_seed(0))
    kept = int((found.gates_TK[:, 1] > 0).sum())
    assert abs(kept - num * 2 * second) < 6 * math.sqrt(num * 2 * second * (1 - 2 * second))
    torch.testing.assert_close(found.gates_TK[:, 0], torch.full((num,), 1 - second, dtype=torch.float64))
    even = torch.zeros(num, 2, dtype=torch.float64)
    assert (gates.gshard(even, torch.Generator().manual_seed(0)).gates_TK == 0.5).all()


def test_gradients_go_through_gates_that_are_kept() -> None:
    logits = LOGITS.clone().requires_grad_()
    chosen = gates.gshard(logits, torch.Generator().manual_seed(1))
    chosen.gates_TK[:, 1].sum().backward()
    assert logits.grad is not None
    was_kept = (chosen.gates_TK[:, 1] > 0).tolist()
    assert [bool(row.abs().sum() > 0) for row in logits.grad] == was_kept


def test_sigmoid_gates_are_those_of_the_best_logits() -> None:
    found = gates.sigmoid(tensor([[0.0, math.log(3), -1.0]], dtype=torch.float64), 2)
    assert found.experts_TK.tolist() == [[1, 0]]
    torch.testing.assert_close(found.gates_TK, tensor([[0.75, 0.5]], dtype=torch.float64))


def test_x_moe_scores_are_cosines_over_a_temperature() -> None:
    hidden = tensor([[3.0, 4.0, 9.0]], dtype=torch.float64)
    projection = tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)  # leaves (3, 4)
    embeddings = tensor([[5.0, 0.0], [0.0, 0.1], [-2.0, 0.0]], dtype=torch.float64)
    logits = gates.cosine_logits(hidden, projection, embeddings, 0.5)
    torch.testing.assert_close(logits, tensor([[1.2, 1.6, -1.2]], dtype=torch.float64))
    found = gates.x_moe(hidden, projection, embeddings, 0.5, 1)
    total = math.exp(1.2) + math.exp(1.6) + math.exp(-1.2)
    assert found.experts_TK.tolist() == [[1]]
    assert float(found.gates_TK) == pytest.approx(math.exp(1.6) / total, rel=1e-12)


def test_experts_choose_their_best_tokens_and_results_stand_at_these() -> None:
    found = gates.expert_choice(LOGITS, 1.5, is_causal=False)  # one token each: ceil(1.5 x 2 / 3)
    assert found.tokens_XC.tolist() == [[1], [0], [0]] or found.tokens_XC.tolist() == [[1], [0], [1]]
    torch.testing.assert_close(found.gates_XC[:, 0], tensor([0.5, 0.6, 0.3], dtype=torch.float64))
    ones = torch.ones(3, 1, 2, dtype=torch.float64)
    combined = gates.combined(found, ones, 2)
    assert float(combined.sum()) == pytest.approx(2 * (0.5 + 0.6 + 0.3))
    assert float(combined[0, 0]) in (pytest.approx(0.6), pytest.approx(0.9))


@given(st.integers(1, 40), st.integers(1, 9), st.floats(0.1, 9.0), st.integers(0, 3))
def test_every_expert_has_exactly_its_capacity(
    num_tokens: int, num_experts: int, factor: float, seed: int
) -> None:
    logits = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    found = gates.expert_choice(logits, factor, is_causal=False)
    capacity = min(num_tokens, math.ceil(factor * num_tokens / num_experts))
    assert all(len(set(tokens)) == capacity for tokens in found.tokens_XC.tolist())
    scores = logits.softmax(1)
    for expert, tokens in enumerate(found.tokens_XC.tolist()):
        others = set(range(num_tokens)) - set(tokens)
        least = float(scores[tokens, expert].min())
        assert all(float(scores[token, expert]) <= least for token in others)


def test_a_decoder_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match="tokens behind it"):
        gates.expert_choice(LOGITS, 1.0, is_causal=True)


def test_what_a_token_chooses_would_change_with_tokens_behind_it() -> None:
    """The reason: a token that an expert has in a text it has no longer where a better one follows."""
    before = gates.expert_choice(LOGITS[:1], 1.0, is_causal=False).tokens_XC
    behind = gates.expert_choice(LOGITS, 1.0, is_causal=False).tokens_XC
    assert before[0].tolist() == [0] and behind[0].tolist() == [1]


@pytest.mark.parametrize("num_per_token", [0, 4])
def test_no_experts_and_more_than_there_are_are_refused(num_per_token: int) -> None:
    with pytest.raises(SpecError, match="of 3 experts a token"):
        gates.sigmoid(LOGITS, num_per_token)


def test_shapes_and_factors_that_are_none_are_refused() -> None:
    with pytest.raises(SpecError, match="dimensions"):
        gates.cosine_logits(torch.ones(1, 3), torch.ones(2, 4), torch.ones(5, 2), 1.0)
    with pytest.raises(SpecError, match="above 0"):
        gates.expert_choice(LOGITS, 0.0, is_causal=False)
