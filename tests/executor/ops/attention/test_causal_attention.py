"""Blocked attention and the gated product equal what torch computes, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.attention import causal_attention as attention
from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.rotary import rotation
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.specs.error import ExecutionError

TOLERANCE = 1e-10


def _value_and_gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)  # type: ignore[operator]
    torch.manual_seed(3)
    y.backward(torch.randn_like(y))
    assert x.grad is not None
    return y, x.grad


@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 64, 150])
@pytest.mark.parametrize("is_rotary", [True, False])
def test_blocked_equals_torch(group_size: int, num_tokens: int, is_rotary: bool) -> None:
    torch.manual_seed(0)
    layout = HeadLayout(num_kv_heads=2, group_size=group_size, head_dim=8)
    qkv = torch.randn(2, num_tokens, layout.query_size + 2 * layout.key_size, dtype=torch.float64)
    turn = rotation(num_tokens, 8, 10_000.0, torch.float64) if is_rotary else None
    blocked = _value_and_gradient(lambda x: causal_attention(x, layout, turn), qkv)
    fused = _value_and_gradient(lambda x: attention._fused_attention(x, layout, turn), qkv)
    for one, other in zip(blocked, fused):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_later_tokens_do_not_change_earlier_outputs() -> None:
    layout = HeadLayout(1, 2, 4)
    qkv = torch.randn(1, 100, 16, dtype=torch.float64)
    changed = qkv.clone()
    changed[:, 70:] += 1.0
    turn = rotation(100, 4, 10_000.0, torch.float64)
    before, after = causal_attention(qkv, layout, turn), causal_attention(changed, layout, turn)
    torch.testing.assert_close(before[:, :70], after[:, :70], rtol=0, atol=1e-14)
    assert not torch.allclose(before[:, 70:], after[:, 70:])


def test_attention_depends_on_distance_only() -> None:
    """Rotary's own property: shifting all positions changes no score."""
    turn = rotation(9, 6, 100.0, torch.float64)
    q, k = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    turned_q = [attention.rotate(q, turn.query[s]) for s in range(9)]
    turned_k = [attention.rotate(k, turn.key[s]) for s in range(9)]
    scores = [float(turned_q[s + 3] @ turned_k[s]) for s in range(6)]
    assert scores == pytest.approx([scores[0]] * 6, abs=1e-12)
    assert abs(float(turned_q[5] @ turned_k[0]) - scores[0]) > 1e-3


def test_odd_heads_cannot_turn() -> None:
    with pytest.raises(ExecutionError, match="head_dim is 5"):
        rotation(4, 5, 10_000.0, torch.float32)


def test_gated_silu_equals_torch() -> None:
    x = torch.randn(3, 5, 14, dtype=torch.float64)

    def plain(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    for one, other in zip(_value_and_gradient(gated_silu, x), _value_and_gradient(plain, x)):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def test_weighted_losses_of_unequal_microbatches_add_to_the_mean() -> None:
    logits, targets = torch.randn(5, 7, 11, dtype=torch.float64), torch.randint(0, 11, (5, 7))
    parts = [
        token_cross_entropy(logits[part], targets[part], 1 / targets.numel())
        for part in (slice(0, 1), slice(1, 5))
    ]
    assert float(sum(parts)) == pytest.approx(float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())))
