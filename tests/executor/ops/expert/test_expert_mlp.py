"""Experts against one token after the other: results, gradients, split backward, odd loads, rows of several devices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.expert.dispatch import by_expert, combine, dispatch
from meshwright.executor.ops.expert.expert_mlp import expert_mlp, grouped_linear
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering

TOLERANCE = 1e-10
NUM_TOKENS, HIDDEN, INNER, NUM_EXPERTS, NUM_PER_TOKEN = 12, 6, 5, 4, 2


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _leaves(is_gated: bool = True) -> tuple[Tensor, ...]:
    """Hidden states, gates, and the experts' matrices."""
    shapes = (
        (NUM_TOKENS, HIDDEN),
        (NUM_TOKENS, NUM_PER_TOKEN),
        (NUM_EXPERTS, INNER * (1 + is_gated), HIDDEN),
        (NUM_EXPERTS, HIDDEN, INNER),
    )
    return tuple(_draw(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))


LOADS = {
    "even": [[t % NUM_EXPERTS, (t + 1) % NUM_EXPERTS] for t in range(NUM_TOKENS)],
    "an expert without tokens": [[0, 3] if t % 2 else [3, 1] for t in range(NUM_TOKENS)],
    "all on two": [[2, 1]] * NUM_TOKENS,
}


def _expected(leaves: tuple[Tensor, ...], experts: list[list[int]], is_gated: bool) -> Tensor:
    hidden_TE, gates_TK, gate_up_XOE, down_XEI = leaves
    rows = []
    for token, chosen in enumerate(experts):
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for place, expert in enumerate(chosen):
            inner = gate_up_XOE[expert] @ hidden_TE[token]
            if is_gated:
                inner = F.silu(inner[:INNER]) * inner[INNER:]
            else:
                inner = F.gelu(inner, approximate="tanh")
            total = total + gates_TK[token, place] * (down_XEI[expert] @ inner)
        rows.append(total)
    return torch.stack(rows)


def _ours(leaves: tuple[Tensor, ...], experts: list[list[int]], is_gated: bool) -> Tensor:
    hidden_TE, gates_TK, gate_up_XOE, down_XEI = leaves
    tokens_NE, order_N, counts_X = dispatch(hidden_TE, torch.tensor(experts), NUM_EXPERTS)
    assert counts_X.tolist() == [sum(row.count(x) for row in experts) for x in range(NUM_EXPERTS)]
    returned_NE = expert_mlp(tokens_NE, counts_X, gate_up_XOE, down_XEI, is_gated=is_gated)
    return combine(returned_NE, gates_TK, order_N)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("load", LOADS)
def test_results_and_gradients(load: str, is_gated: bool, is_split: bool) -> None:
    ours, theirs, dy_TE = _leaves(is_gated), _leaves(is_gated), _draw(NUM_TOKENS, HIDDEN, seed=9)
    expected_TE = _expected(theirs, LOADS[load], is_gated)
    expected_TE.backward(dy_TE)
    queue = WeightGradientQueue("test")
    with registering(queue):
        found_TE = _ours(ours, LOADS[load], is_gated)
    torch.testing.assert_close(found_TE, expected_TE, rtol=0, atol=TOLERANCE)
    if is_split:
        with deferring(queue):
            found_TE.backward(dy_TE)
        assert ours[2].grad is None and ours[3].grad is None and ours[0].grad is not None
        assert queue.run() == 2
    else:
        found_TE.backward(dy_TE)
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=TOLERANCE)


def test_sums_repeat_bitwise() -> None:
    def gradients() -> list[Tensor]:
        leaves = _leaves()
        _ours(leaves, LOADS["even"], True).sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    assert all(torch.equal(one, other) for one, other in zip(gradients(), gradients(), strict=True))


@pytest.mark.parametrize(
    "counts",
    [[[2, 0, 1], [1, 3, 0]], [[0, 0, 0], [0, 4, 0], [1, 0, 0]], [[5, 0, 2]], [[0, 0, 0], [0, 0, 0]]],
    ids=str,
)
def test_rows_of_several_devices(counts: list[list[int]]) -> None:
    """Sorted by (device, expert), they go through the same experts as alone, and come back in that order."""
    counts_PX = torch.tensor(counts)
    experts_N = torch.repeat_interleave(torch.arange(3).repeat(len(counts)), counts_PX.reshape(-1))
    tokens_NE, dy_NE = _draw(len(experts_N), HIDDEN, seed=5).requires_grad_(), _draw(len(experts_N), HIDDEN)
    gate_up_XOE, down_XEI = (x[:3].detach().requires_grad_() for x in _leaves()[2:])
    ours = expert_mlp(tokens_NE, counts_PX, gate_up_XOE, down_XEI)
    ours.backward(dy_NE)
    assert torch.equal(experts_N[by_expert(counts_PX)], experts_N.sort(stable=True).values)
    assert tokens_NE.grad is not None and gate_up_XOE.grad is not None
    again, matrices = tokens_NE.detach().requires_grad_(), (gate_up_XOE.detach(), down_XEI.detach())
    for row, expert in enumerate(experts_N.tolist()):
        alone = torch.tensor([int(expert == x) for x in range(3)])
        expected = expert_mlp(again[row : row + 1], alone, *matrices)
        torch.testing.assert_close(ours[row : row + 1], expected, rtol=0, atol=TOLERANCE)
        expected.backward(dy_NE[row : row + 1])
    if again.grad is not None:
        torch.testing.assert_close(tokens_NE.grad, again.grad, rtol=0, atol=TOLERANCE)


def test_a_frozen_matrix_keeps_nothing() -> None:
    x_NI, weight_XOI = _draw(3, HIDDEN).requires_grad_(), _draw(2, INNER, HIDDEN)
    queue = WeightGradientQueue("test")
    with registering(queue):
        y_NO = grouped_linear(x_NI, torch.tensor([3, 0]), weight_XOI)
    assert queue.num_registered == 0
    y_NO.sum().backward()
    assert weight_XOI.grad is None
    torch.testing.assert_close(x_NI.grad, weight_XOI[0].sum(0).expand(3, -1), rtol=0, atol=TOLERANCE)
