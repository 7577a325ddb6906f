"""One block of a decoder, pre-norm: attention, then an MLP or experts, each added to the residual stream.

Shapes: B samples, S tokens, E hidden size, D head size, H query heads, K key-value heads, I inner size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.models.lora import with_addition
from meshwright.executor.models.part.latent_attention import LatentAttention
from meshwright.executor.models.part.mixture import MixtureOfExperts
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation
from meshwright.executor.ops.attention.sink.sink_attention import sink_attention
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.norm.layer_norm import SplitLayerNorm
from meshwright.executor.ops.norm.rms_norm import SplitRMSNorm
from meshwright.executor.ops.randomness import SampleKeys, dropout
from meshwright.specs.model.block import Experts, FeedForward
from meshwright.specs.model.model import ModelSpec


def norm_layer(model: ModelSpec, width: int) -> nn.Module:
    """LayerNorm for GPT-2, RMSNorm otherwise."""
    if model.is_gpt2:
        return SplitLayerNorm(width, eps=model.norm_epsilon)
    return SplitRMSNorm(width, eps=model.norm_epsilon)


class HeadSinks(nn.Module):
    """One number of every head, which joins the softmax of its scores."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads))


class Block(nn.Module):
    """Block number `layer` of `model`.

    Queries, keys and values are one matrix (`qkv`), as are gate and up (`gate_up`). Built on the current
    default device; `build_stage` gives the parameters their values. With `parallel` it has this device's heads and inner
    units, and its residual stream is whole or divided by tokens.
    """

    def __init__(
        self, model: ModelSpec, layer: int, dropout: float = 0.0, parallel: TensorParallel | None = None
    ) -> None:
        super().__init__()
        gpt2, hidden, self.parallel = model.is_gpt2, model.hidden_size, parallel
        degree = 1 if parallel is None else parallel.team.degree
        self.latent_attention: LatentAttention | None
        self.mixture: MixtureOfExperts | None
        self.layer, self.dropout, self.is_gated = layer, dropout, model.has_gated_mlp
        attention, mlp = model.layers[layer].attention, model.layers[layer].feed_forward
        group_size = attention.num_heads // attention.num_kv_heads
        kv_heads = attention.num_kv_heads // degree
        self.layout = HeadLayout(kv_heads, group_size, attention.head_dim, attention.window)
        self.gelu = "none" if isinstance(mlp, FeedForward) and mlp.activation == "gelu" else "tanh"
        self.attention_norm = norm_layer(model, hidden)
        if attention.latent:
            self.latent_attention = LatentAttention(
                hidden, attention, attention.latent, degree, model.rotary_scaling
            )
        else:
            self.latent_attention = None
            qkv = SplitLinear(hidden, attention.qkv_size // degree, gpt2 or attention.has_qkv_bias)
            self.qkv = with_addition(model, "qkv", qkv)
        self.sinks = HeadSinks(attention.num_heads // degree) if model.has_attention_sinks else None
        has_norms, head_dim = attention.has_query_key_norm, attention.head_dim
        self.query_norm = norm_layer(model, head_dim) if has_norms else None
        self.key_norm = norm_layer(model, head_dim) if has_norms else None
        has_output_bias = gpt2 or attention.has_output_bias
        attention_output = SplitLinear(attention.result_size // degree, hidden, has_output_bias)
        self.attention_output = with_addition(model, "attention_output", attention_output)
        self.mlp_norm = norm_layer(model, hidden)
        if isinstance(mlp, Experts):
            self.mixture = MixtureOfExperts(model, layer, mlp, parallel)
        else:
            self._add_mlp(model, mlp, degree)

    def _add_mlp(self, model: ModelSpec, mlp: FeedForward, degree: int) -> None:
        """The matrices of a dense MLP."""
        hidden, inner, has_bias = (
            model.hidden_size,
            mlp.intermediate_size // degree,
            model.is_gpt2 or mlp.has_bias,
        )
        self.mixture = None
        gate_up = SplitLinear(hidden, inner * (2 if self.is_gated else 1), has_bias)
        self.gate_up = with_addition(model, "gate_up", gate_up)
        self.down = with_addition(model, "down", SplitLinear(inner, hidden, has_bias))

    def forward(
        self,
        x_BSE: Tensor,
        turn: Rotation | None,
        keys: SampleKeys | None = None,
        documents: DocumentMask | None = None,
    ) -> Tensor:
        """x_BSE -> the same shape. `keys` name the draws of dropout, which is off without them. With `documents` attention
        stays within a document."""
        return self.mlp_part(self.attention_part(x_BSE, turn, keys, documents), keys)

    def attend(self, qkv: Tensor, turn: Rotation | None, documents: DocumentMask | None = None) -> Tensor:
        """The attention of a fused projection: causal."""
        if self.sinks is not None:
            assert turn is not None, "sinks are of a family with rotary positions"
            return sink_attention(qkv, self.layout, turn, self.sinks.weight, documents)
        return causal_attention(qkv, self.layout, turn, documents)

    def attention_part(
        self,
        x_BSE: Tensor,
        turn: Rotation | None,
        keys: SampleKeys | None,
        documents: DocumentMask | None = None,
    ) -> Tensor:
        """The block's first half: attention, added to its input."""
        return x_BSE + self.attention_result(x_BSE, turn, keys, documents)

    def attention_result(
        self,
        x_BSE: Tensor,
        turn: Rotation | None,
        keys: SampleKeys | None,
        documents: DocumentMask | None = None,
    ) -> Tensor:
        """What attention adds to the residual stream."""
        attended = self.attended(self.attention_norm(x_BSE), turn, documents)
        return self.dropped(self.attention_output(attended), keys, "attention")

    def attended(self, x_BSE: Tensor, turn: Rotation | None, documents: DocumentMask | None = None) -> Tensor:
        """Attention of a normed input, in front of its last product."""
        if self.latent_attention is None:
            return self.attend(self.heads(x_BSE), turn, documents)
        attended: Tensor = self.latent_attention(x_BSE, turn, documents)
        return attended

    def heads(self, x_BSE: Tensor) -> Tensor:
        """Queries, keys and values of a normed input, not yet turned."""
        qkv: Tensor = self.qkv(x_BSE)
        if self.query_norm is not None and self.key_norm is not None:
            qkv = self._normed_heads(qkv, self.query_norm, self.key_norm)
        return qkv

    def mlp_part(self, x_BSE: Tensor, keys: SampleKeys | None) -> Tensor:
        """The block's second half: the MLP, or its experts, added to its input."""
        return x_BSE + self.mlp_result(x_BSE, keys)

    def mlp_result(self, x_BSE: Tensor, keys: SampleKeys | None) -> Tensor:
        """What the MLP, or its experts, add to the residual stream."""
        normed_BSE = self.mlp_norm(x_BSE)
        result_BSE = self.down(self.inner(normed_BSE)) if self.mixture is None else self.mixture(normed_BSE)
        return self.dropped(result_BSE, keys, "mlp")

    def inner(self, x_BSE: Tensor) -> Tensor:
        """The dense MLP of a normed input, in front of its last product."""
        return self.activated(self.gate_up(x_BSE))

    def activated(self, inner: Tensor) -> Tensor:
        """Gate and up, or up alone, behind the activation."""
        return gated_silu(inner) if self.is_gated else F.gelu(inner, approximate=self.gelu)

    def _normed_heads(self, qkv: Tensor, query_norm: nn.Module, key_norm: nn.Module) -> Tensor:
        """Queries and keys normalised head by head, before they turn (Qwen3)."""
        heads = qkv.view(*qkv.shape[:-1], -1, self.layout.head_dim)
        num_heads, num_kv_heads = self.layout.num_kv_heads * self.layout.group_size, self.layout.num_kv_heads
        query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], -2)
        return torch.cat((query_norm(query), key_norm(key), value), -2).flatten(-2)

    def dropped(self, x_BSE: Tensor, keys: SampleKeys | None, use: str) -> Tensor:
        """What a half of the block adds to the residual stream, with dropout where there is any."""
        if not self.dropout or keys is None:
            return x_BSE
        part = (0, 1) if self.parallel is None else self.parallel.part
        return dropout(x_BSE, self.dropout, keys.of(self.layer, use), part, keys.tokens)
