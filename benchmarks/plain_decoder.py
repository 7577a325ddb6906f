"""The same decoder in torch's own modules and plain autograd: oracle of the tests, peer of the benchmarks.

Shapes: B samples, S tokens, E hidden size, D head size, H query heads, K key-value heads, V vocabulary.

Names and shapes of parameters are those of `decoder.DecoderStage`, so `load_state_dict` moves weights across.
No keyed dropout, no split backward; every operation is one anybody would write.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.attention.rotary import frequencies
from meshwright.specs.model.block import Attention, BlockSpec, Experts, FeedForward, LatentRanks
from meshwright.specs.model.model import ModelSpec


def _norm(model: ModelSpec, width: int) -> nn.Module:
    kind = nn.LayerNorm if model.is_gpt2 else nn.RMSNorm
    return kind(width, eps=model.norm_epsilon)


def turned(x_BHSD: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
    """Each pair (2i, 2i + 1) of a head turned by its angle (P = D / 2 pairs)."""
    even, odd = x_BHSD[..., 0::2], x_BHSD[..., 1::2]
    return torch.stack((even * cos_SP - odd * sin_SP, even * sin_SP + odd * cos_SP), -1).flatten(-2)


def _window_mask(query_BHSD: Tensor, window: int) -> Tensor:
    """True where a query (row) sees a key: itself and the `window` - 1 before it."""
    num_tokens = query_BHSD.shape[2]
    ones_SS = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=query_BHSD.device)
    return ones_SS.tril().triu(1 - window)


class PlainExperts(nn.Module):
    """Matrices of all experts."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


class PlainShared(nn.Module):
    """The shared experts' MLP."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """SwiGLU."""
        gate, up = self.gate_up(x_BSE).chunk(2, -1)
        out_BSE: Tensor = self.down(F.silu(gate) * up)
        return out_BSE


class PlainCosines(nn.Module):
    """A router that compares tokens and experts in a few dimensions."""

    def __init__(self, hidden_size: int, rank: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_experts, rank))
        self.projection = nn.Parameter(torch.zeros(rank, hidden_size))
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x_BSE: Tensor) -> Tensor:
        """Logits, [B, S, X]."""
        narrow, experts = F.normalize(x_BSE @ self.projection.t(), dim=-1), F.normalize(self.weight, dim=-1)
        return narrow @ experts.t() / self.temperature


class PlainMixture(nn.Module):
    """Every token through every expert, and the results of those it was not sent to times zero (X experts)."""

    def __init__(self, model: ModelSpec, experts: Experts) -> None:
        super().__init__()
        num, hidden, inner = experts.num_experts, model.hidden_size, experts.intermediate_size
        self.experts, self.routing = experts, experts.routing_in(model.architecture)
        self.has_bias = model.has_expert_bias
        rank = self.routing.cosine_rank
        self.router = PlainCosines(hidden, rank, num) if rank else nn.Linear(hidden, num, bias=self.has_bias)
        self.expert_gate_up = PlainExperts(num, 2 * inner, hidden)
        self.expert_down = PlainExperts(num, hidden, inner)
        if self.has_bias:
            self.expert_gate_up.bias = nn.Parameter(torch.zeros(num, 2 * inner))
            self.expert_down.bias = nn.Parameter(torch.zeros(num, hidden))
        if self.routing.has_correction:
            self.correction = nn.Buffer(torch.zeros(num))
        if experts.shared_intermediate_size:
            self.shared = PlainShared(hidden, experts.shared_intermediate_size)
        if model.has_shared_gate:
            self.shared_gate = nn.Linear(hidden, 1, bias=False)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """x_BSE -> the same shape."""
        both_BSXO = torch.einsum("bse,xoe->bsxo", x_BSE, self.expert_gate_up.weight)
        gate_BSXI, up_BSXI = (both_BSXO + self.expert_gate_up.bias if self.has_bias else both_BSXO).chunk(
            2, -1
        )
        inner_BSXI = F.silu(gate_BSXI) * up_BSXI
        if self.has_bias:
            gate_BSXI, up_BSXI = gate_BSXI.clamp(max=7.0), up_BSXI.clamp(-7.0, 7.0)
            inner_BSXI = (up_BSXI + 1) * gate_BSXI * torch.sigmoid(1.702 * gate_BSXI)
        each_BSXE = torch.einsum("bsxi,xei->bsxe", inner_BSXI, self.expert_down.weight)
        each_BSXE = each_BSXE + self.expert_down.bias if self.has_bias else each_BSXE
        out_BSE = torch.einsum("bsxe,bsx->bse", each_BSXE, self._gates(x_BSE))
        if hasattr(self, "shared"):
            shared = self.shared(x_BSE)
            out_BSE = out_BSE + (
                shared * self.shared_gate(x_BSE).sigmoid() if hasattr(self, "shared_gate") else shared
            )
        return out_BSE

    def _gates(self, x_BSE: Tensor) -> Tensor:
        routing = self.routing
        logits = self.router(x_BSE)
        scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
        choice = scores + self.correction if routing.has_correction else scores
        best = self._open(choice).topk(self.experts.num_experts_per_token, -1)
        chosen = torch.zeros_like(scores).scatter(-1, best.indices, 1.0)
        gates = scores * chosen
        gates = gates / gates.sum(-1, keepdim=True) if routing.has_unit_sum else gates
        return gates * routing.gate_scale

    def _open(self, scores: Tensor) -> Tensor:
        """Scores, none outside of the best groups: those of the best expert, or of the best two together."""
        routing = self.routing
        grouped = scores.unflatten(-1, (routing.num_groups, -1))
        best = grouped.sort(-1, descending=True).values[..., : 2 if routing.has_correction else 1].sum(-1)
        places = best.argsort(-1, descending=True).argsort(-1)
        is_open = (places < routing.num_groups_per_token)[..., None]
        return grouped.masked_fill(~is_open, -torch.inf).flatten(-2)


class PlainLatentAttention(nn.Module):
    """Keys and values from a few numbers; the last R of queries and keys turn, those of a key are one for all heads."""

    def __init__(self, hidden: int, attention: Attention, latent: LatentRanks) -> None:
        super().__init__()
        self.attention, self.latent, self.num_plain = (
            attention,
            latent,
            attention.head_dim - latent.rotary_head_dim,
        )
        if latent.query_rank:
            self.narrow_query = nn.Linear(hidden, latent.query_rank, bias=attention.has_qkv_bias)
            self.narrow_query_norm = nn.RMSNorm(latent.query_rank, eps=1e-6)
            self.widen_query = nn.Linear(latent.query_rank, attention.query_size, bias=False)
        else:
            self.query = nn.Linear(hidden, attention.query_size, bias=False)
        narrow = latent.key_value_rank + latent.rotary_head_dim
        self.narrow_key_value = nn.Linear(hidden, narrow, bias=attention.has_qkv_bias)
        self.narrow_key_value_norm = nn.RMSNorm(latent.key_value_rank, eps=1e-6)
        widened = attention.num_heads * (self.num_plain + latent.value_head_dim)
        self.widen_key_value = nn.Linear(latent.key_value_rank, widened, bias=False)

    def forward(self, x_BSE: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
        """In front of the output projection."""
        heads = self.attention.num_heads
        if self.latent.query_rank:
            query = self.widen_query(self.narrow_query_norm(self.narrow_query(x_BSE)))
        else:
            query = self.query(x_BSE)
        query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        narrow = self.narrow_key_value(x_BSE)
        latent, shared = narrow[..., : self.latent.key_value_rank], narrow[..., self.latent.key_value_rank :]
        both = (
            self.widen_key_value(self.narrow_key_value_norm(latent))
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
        )
        key = torch.cat((both[..., : self.num_plain], shared[:, None].expand(-1, heads, -1, -1)), -1)
        query, key = (
            torch.cat((x[..., : self.num_plain], turned(x[..., self.num_plain :], cos_SP, sin_SP)), -1)
            for x in (query, key)
        )
        scores = (query @ key.transpose(-1, -2)) * self.attention.head_dim**-0.5
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        return (scores.softmax(-1) @ both[..., self.num_plain :]).transpose(1, 2).flatten(2)


class PlainBlock(nn.Module):
    """A pre-norm block: attention and MLP."""

    def __init__(self, model: ModelSpec, block: BlockSpec) -> None:
        super().__init__()
        gpt2, hidden = model.is_gpt2, model.hidden_size
        attention, mlp = block.attention, block.feed_forward
        self.model, self.attention = model, attention
        self.gelu = "none" if isinstance(mlp, FeedForward) and mlp.activation == "gelu" else "tanh"
        self.attention_norm = _norm(model, hidden)
        if attention.latent:
            self.latent_attention = PlainLatentAttention(hidden, attention, attention.latent)
        else:
            self.qkv = nn.Linear(hidden, attention.qkv_size, bias=gpt2 or attention.has_qkv_bias)
        if model.has_attention_sinks:
            self.sinks = PlainExperts(attention.num_heads)
        if attention.has_query_key_norm:
            self.query_norm = nn.RMSNorm(attention.head_dim, eps=model.norm_epsilon)
            self.key_norm = nn.RMSNorm(attention.head_dim, eps=model.norm_epsilon)
        self.attention_output = nn.Linear(
            attention.result_size, hidden, bias=gpt2 or attention.has_output_bias
        )
        self.mlp_norm = _norm(model, hidden)
        if isinstance(mlp, Experts):
            self.mixture = PlainMixture(model, mlp)
            return
        inner = mlp.intermediate_size * (2 if model.has_gated_mlp else 1)
        self.gate_up = nn.Linear(hidden, inner, bias=gpt2 or mlp.has_bias)
        self.down = nn.Linear(mlp.intermediate_size, hidden, bias=gpt2 or mlp.has_bias)

    def forward(self, x_BSE: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
        """x_BSE -> the same shape."""
        x_BSE = x_BSE + self.attention_output(self._attended(x_BSE, cos_SP, sin_SP))
        return x_BSE + self.fed_forward(x_BSE)

    def fed_forward(self, x_BSE: Tensor) -> Tensor:
        """What the MLP or the experts add."""
        if hasattr(self, "mixture"):
            mixed_BSE: Tensor = self.mixture(self.mlp_norm(x_BSE))
            return mixed_BSE
        inner = self.gate_up(self.mlp_norm(x_BSE))
        if self.model.has_gated_mlp:
            gate, up = inner.chunk(2, -1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(inner, approximate=self.gelu)
        out_BSE: Tensor = self.down(inner)
        return out_BSE

    def _attended(self, x_BSE: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
        model, attention = self.model, self.attention
        if attention.latent:
            latent: Tensor = self.latent_attention(self.attention_norm(x_BSE), cos_SP, sin_SP)
            return latent
        sizes = (attention.query_size, attention.key_size, attention.key_size)
        query, key, value = (
            part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x_BSE)).split(sizes, -1)
        )
        if attention.has_query_key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if not model.has_learned_positions:
            query, key = turned(query, cos_SP, sin_SP), turned(key, cos_SP, sin_SP)
        is_grouped = attention.num_kv_heads != attention.num_heads
        seen_SS = _window_mask(query, attention.window) if attention.window else None
        if model.has_attention_sinks:
            return self._with_sinks(query, key, value, seen_SS)
        out = F.scaled_dot_product_attention(
            query, key, value, seen_SS, is_causal=seen_SS is None, enable_gqa=is_grouped
        )
        return out.transpose(1, 2).flatten(2)

    def _with_sinks(self, query: Tensor, key: Tensor, value: Tensor, seen_SS: Tensor | None) -> Tensor:
        """A column of its own in the softmax for every head, which has no value."""
        group = self.attention.num_heads // self.attention.num_kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = query @ key.transpose(-1, -2) * self.attention.head_dim**-0.5
        seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril() if seen_SS is None else seen_SS
        sinks = self.sinks.weight[None, :, None, None].expand(*scores.shape[:-1], 1)
        whole = torch.cat((scores.masked_fill(~seen, -torch.inf), sinks), -1).softmax(-1)
        return (whole[..., :-1] @ value).transpose(1, 2).flatten(2)


class PlainDecoder(nn.Module):
    """The whole model, or the blocks of a range of layers with perhaps embedding and head."""

    def __init__(
        self, model: ModelSpec, layers: range | None = None, has_embedding: bool = True, has_head: bool = True
    ) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.model = model
        self.embedding = nn.Embedding(model.vocabulary_size, hidden) if has_embedding else None
        has_positions = has_embedding and model.has_learned_positions
        self.positions = nn.Embedding(model.max_sequence_length, hidden) if has_positions else None
        chosen = range(model.num_layers) if layers is None else layers
        self.layers = nn.ModuleDict({str(layer): PlainBlock(model, model.layers[layer]) for layer in chosen})
        self.final_norm = _norm(model, hidden) if has_head else None
        self.head = nn.Linear(hidden, model.vocabulary_size, bias=False) if has_head else None
        if model.has_tied_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight
        positions = torch.arange(model.max_sequence_length, dtype=torch.float64)
        angles = torch.outer(
            positions, frequencies(model.attention.turned_dim, model.rope_theta, model.rotary_scaling)
        )
        grown = model.rotary_scaling.turned_factor if model.rotary_scaling else 1.0
        cos, sin = (grown * table.to(torch.get_default_dtype()) for table in (angles.cos(), angles.sin()))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """tokens_BS or hidden_BSE -> logits_BSV or hidden_BSE."""
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        cos_SP, sin_SP = self.get_buffer("cos")[: x.shape[1]], self.get_buffer("sin")[: x.shape[1]]
        if self.model.has_ladder_residual:
            x = self._climbed(x, cos_SP, sin_SP)
        elif self.model.has_parallel_branches:
            attended = [
                one.attention_output(one._attended(x, cos_SP, sin_SP)) for one in self.layers.values()
            ]
            x = x + torch.stack([*attended, *(one.fed_forward(x) for one in self.layers.values())]).sum(0)
        else:
            for block in self.layers.values():
                x = block(x, cos_SP, sin_SP)
        if self.final_norm is not None and self.head is not None:
            x = self.head(self.final_norm(x))
        return x

    def _climbed(self, x_BSE: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
        """The blocks of a whole model with a ladder residual, in the order of its authors' code."""
        attended_BSE = fed_BSE = torch.zeros_like(x_BSE)
        for block in self.layers.values():
            x_BSE = x_BSE + attended_BSE
            attended_BSE = block.attention_output(block._attended(x_BSE, cos_SP, sin_SP))
            x_BSE = x_BSE + fed_BSE
            fed_BSE = block.fed_forward(x_BSE)
        return x_BSE + attended_BSE + fed_BSE
