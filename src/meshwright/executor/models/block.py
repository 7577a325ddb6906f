"""One block of a decoder, pre-norm: attention and MLP, each added to the residual stream.

Shapes: B samples, S tokens, E hidden size, D head size, H query heads, K key-value heads, I inner size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.layer_norm import SplitLayerNorm
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.rms_norm import SplitRMSNorm
from meshwright.executor.ops.rotary import Rotation
from meshwright.executor.randomness import SampleKeys, dropout
from meshwright.specs.model import ModelSpec


def norm_layer(model: ModelSpec, width: int) -> nn.Module:
    """LayerNorm for GPT-2, RMSNorm otherwise."""
    if model.is_gpt2:
        return SplitLayerNorm(width, eps=model.norm_epsilon)
    return SplitRMSNorm(width, eps=model.norm_epsilon)


class Block(nn.Module):
    """Block number `layer` of `model`.

    Queries, keys and values are one matrix (`qkv`), as are gate and up (`gate_up`). Built on the current
    default device; `build_stage` gives the parameters their values.
    """

    def __init__(self, model: ModelSpec, layer: int, dropout: float = 0.0) -> None:
        super().__init__()
        gpt2, hidden = model.is_gpt2, model.hidden_size
        self.layer, self.dropout, self.is_gated = layer, dropout, model.has_gated_mlp
        self.layout = HeadLayout(model.num_kv_heads, model.num_heads // model.num_kv_heads, model.head_dim)
        self.attention_norm = norm_layer(model, hidden)
        self.qkv = SplitLinear(hidden, model.qkv_size, bias=gpt2 or model.has_qkv_bias)
        has_norms = model.has_query_key_norm
        self.query_norm = norm_layer(model, model.head_dim) if has_norms else None
        self.key_norm = norm_layer(model, model.head_dim) if has_norms else None
        self.attention_output = SplitLinear(model.query_size, hidden, bias=gpt2 or model.has_output_bias)
        self.mlp_norm = norm_layer(model, hidden)
        inner = model.intermediate_size * (2 if self.is_gated else 1)
        self.gate_up = SplitLinear(hidden, inner, bias=gpt2 or model.has_mlp_bias)
        self.down = SplitLinear(model.intermediate_size, hidden, bias=gpt2 or model.has_mlp_bias)

    def forward(self, x_BSE: Tensor, turn: Rotation | None, keys: SampleKeys | None = None) -> Tensor:
        """x_BSE -> the same shape. `keys` name the draws of dropout, which is off without them."""
        return self.mlp_part(self.attention_part(x_BSE, turn, keys), keys)

    def attend(self, qkv: Tensor, turn: Rotation | None) -> Tensor:
        """The attention of a fused projection: causal."""
        return causal_attention(qkv, self.layout, turn)

    def attention_part(self, x_BSE: Tensor, turn: Rotation | None, keys: SampleKeys | None) -> Tensor:
        """The block's first half: attention, added to its input."""
        qkv = self.qkv(self.attention_norm(x_BSE))
        if self.query_norm is not None and self.key_norm is not None:
            qkv = self._normed_heads(qkv, self.query_norm, self.key_norm)
        attended = self.attention_output(self.attend(qkv, turn))
        return x_BSE + self._dropped(attended, keys, "attention")

    def mlp_part(self, x_BSE: Tensor, keys: SampleKeys | None) -> Tensor:
        """The block's second half: the MLP, added to its input."""
        inner = self.gate_up(self.mlp_norm(x_BSE))
        inner = gated_silu(inner) if self.is_gated else F.gelu(inner, approximate="tanh")
        return x_BSE + self._dropped(self.down(inner), keys, "mlp")

    def _normed_heads(self, qkv: Tensor, query_norm: nn.Module, key_norm: nn.Module) -> Tensor:
        """Queries and keys normalised head by head, before they turn (Qwen3)."""
        heads = qkv.view(*qkv.shape[:-1], -1, self.layout.head_dim)
        num_heads, num_kv_heads = self.layout.num_kv_heads * self.layout.group_size, self.layout.num_kv_heads
        query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], -2)
        return torch.cat((query_norm(query), key_norm(key), value), -2).flatten(-2)

    def _dropped(self, x_BSE: Tensor, keys: SampleKeys | None, use: str) -> Tensor:
        if not self.dropout or keys is None:
            return x_BSE
        return dropout(x_BSE, self.dropout, keys.of(self.layer, use))
