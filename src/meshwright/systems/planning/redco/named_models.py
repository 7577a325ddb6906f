"""Two small decoders by the names of public ones: GPT-2 (fused, [in, out] weights, tied head) and Llama (grouped queries).

Their attention takes the number of its heads from what the projections give, so that a device may have some of them.

Shapes: B samples, S tokens, E width, H query heads here, K key-value heads here, D numbers of a head, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.randomness import keyed_generator, random_key


class InOutLinear(nn.Module):
    """A linear layer whose weight is [inputs, outputs], as GPT-2's are."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x weight + bias."""
        return x @ self.weight + self.bias


class HeadPlace(nn.Module):
    """Where an attention's heads stand among all: first query head here, first key-value head here, queries per key."""

    def __init__(self, head_dim: int, group_size: int) -> None:
        super().__init__()
        self.head_dim, self.group_size = head_dim, group_size
        self.first_query, self.first_key = 0, 0

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of [B, S, heads D] projections."""
        q_BHSD, k_BKSD, v_BKSD = (x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for x in (q, k, v))
        heads = (self.first_query + torch.arange(q_BHSD.shape[1])) // self.group_size - self.first_key
        mixed = F.scaled_dot_product_attention(q_BHSD, k_BKSD[:, heads], v_BKSD[:, heads], is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


class Gpt2Attention(HeadPlace):
    """One layer for queries, keys and values."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__(head_dim, 1)
        self.c_attn, self.c_proj = InOutLinear(width, 3 * width), InOutLinear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        q, k, v = self.c_attn(x).chunk(3, -1)
        return self.c_proj(self.mix(q, k, v))  # type: ignore[no-any-return]


class Gpt2Mlp(nn.Module):
    """c_fc, GELU, c_proj."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = InOutLinear(width, 4 * width), InOutLinear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.c_proj(F.gelu(self.c_fc(x)))  # type: ignore[no-any-return]


class Gpt2Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Gpt2Attention(width, head_dim)
        self.ln_2, self.mlp = nn.LayerNorm(width), Gpt2Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind both."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """Logits [B, S, V]; the head is the table of words."""

    def __init__(
        self, num_layers: int, width: int, head_dim: int, vocabulary_size: int, positions: int
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary_size, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(Gpt2Block(width, head_dim) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Of tokens from position 0 on."""
        x = self.wte(tokens_BS) + self.wpe(torch.arange(tokens_BS.shape[1]))
        for block in self.h:
            x = block(x)
        return logits_of(self.wte, self.ln_f(x))


def logits_of(table: nn.Module, x_BSE: Tensor) -> Tensor:
    """Logits by a tied table: by its own method where it has one (a table that is cut), else by its weight."""
    if isinstance(table, nn.Embedding):
        return x_BSE @ table.weight.T
    return table.logits(x_BSE)  # type: ignore[operator, no-any-return]


class LlamaAttention(HeadPlace):
    """Grouped queries, no biases."""

    def __init__(self, width: int, head_dim: int, num_kv_heads: int) -> None:
        super().__init__(head_dim, width // head_dim // num_kv_heads)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.o_proj(self.mix(self.q_proj(x), self.k_proj(x), self.v_proj(x)))  # type: ignore[no-any-return]


class LlamaMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, num_units: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, num_units, bias=False)
        self.up_proj = nn.Linear(width, num_units, bias=False)
        self.down_proj = nn.Linear(num_units, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, head_dim: int, num_kv_heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn = LlamaAttention(width, head_dim, num_kv_heads)
        self.mlp = LlamaMlp(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind both."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Logits [B, S, V], with a head of its own; without positions, which cut nothing."""

    def __init__(
        self, num_layers: int, width: int, head_dim: int, vocabulary_size: int, num_kv_heads: int
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary_size, width)
        self.layers = nn.ModuleList(LlamaBlock(width, head_dim, num_kv_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary_size, bias=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Of any tokens."""
        x = self.embed_tokens(tokens_BS)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))  # type: ignore[no-any-return]


NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, POSITIONS = 2, 32, 8, 101, 16  # an odd vocabulary has padding
MODELS = ("gpt2", "llama", "llama_one_kv_head")


def build(name: str) -> nn.Module:
    """One of MODELS in float64, drawn from its name: norms near one, biases near zero, the rest normal."""
    if name == "gpt2":
        model: nn.Module = Gpt2(NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, POSITIONS)
    else:
        model = Llama(NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, 1 if name == "llama_one_kv_head" else 2)
    model = model.double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            generator = keyed_generator(random_key("named", name, path))
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_norm = parameter.dim() == 1 and not path.endswith("bias")
            parameter.copy_(is_norm + drawn * (0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5))
    return model
