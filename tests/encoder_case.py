"""An encoder-decoder in plain torch: attention by softmax of scores, written out.

Shapes: B samples, S tokens of a window, H tokens of half a window, E hidden size, V vocabulary, D numbers of a head.
"""

from __future__ import annotations

import torch
from benchmarks.plain_decoder import PlainBlock, PlainDecoder
from torch import Tensor, nn

from meshwright.specs.model.block import BlockSpec
from meshwright.specs.model.model import ModelSpec


def _heads(x: Tensor, head_dim: int) -> Tensor:
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


class PlainEncoderBlock(PlainBlock):
    """A block without a mask: attention by softmax of scores, written out."""

    def _attended(self, x_BSE: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
        model = self.model
        query, key, value = (
            _heads(part, model.head_dim)
            for part in self.qkv(self.attention_norm(x_BSE)).split(
                (model.attention.query_size, model.attention.key_size, model.attention.key_size), -1
            )
        )
        if model.attention.has_query_key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        return _attention(_turned(query, cos_SP, sin_SP), _turned(key, cos_SP, sin_SP), value)


def _turned(x_BHSD: Tensor, cos_SP: Tensor, sin_SP: Tensor) -> Tensor:
    even, odd = x_BHSD[..., 0::2], x_BHSD[..., 1::2]
    return torch.stack((even * cos_SP - odd * sin_SP, even * sin_SP + odd * cos_SP), -1).flatten(-2)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, heads, S, D] each, fewer key heads repeated -> [B, S, heads D]."""
    times = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    weights = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)
    return (weights @ value).transpose(1, 2).flatten(2)


class PlainCrossBlock(PlainBlock):
    """A decoder's block with cross attention between its two parts."""

    def __init__(self, model: ModelSpec, block: BlockSpec) -> None:
        super().__init__(model, block)
        hidden = model.hidden_size
        self.cross_norm = nn.RMSNorm(hidden, eps=model.norm_epsilon)
        self.cross_query = nn.Linear(hidden, model.attention.query_size, bias=False)
        self.cross_key_value = nn.Linear(hidden, 2 * model.attention.key_size, bias=False)
        self.cross_attention_output = nn.Linear(model.attention.query_size, hidden, bias=False)

    def crossed(self, x: Tensor, cos_SP: Tensor, sin_SP: Tensor, encoded: Tensor) -> Tensor:
        """x_BHE -> the same shape."""
        x = x + self.attention_output(self._attended(x, cos_SP, sin_SP))
        query = _heads(self.cross_query(self.cross_norm(x)), self.model.head_dim)
        key, value = (
            _heads(part, self.model.head_dim) for part in self.cross_key_value(encoded).chunk(2, -1)
        )
        x = x + self.cross_attention_output(_attention(query, key, value))
        return x + self.fed_forward(x)


class PlainEncoderDecoder(PlainDecoder):
    """Encoder and decoder; the logits are those of the second half of each window."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model, range(0))
        kinds = {"encoder": PlainEncoderBlock, "decoder": PlainCrossBlock}
        self.layers = nn.ModuleDict(
            {str(number): kinds[block.half](model, block) for number, block in enumerate(model.layers)}
        )
        self.encoder_norm = nn.RMSNorm(model.hidden_size, eps=model.norm_epsilon)
        self.target_embedding = nn.Embedding(model.vocabulary_size, model.hidden_size)
        if model.has_tied_embeddings:
            assert self.embedding is not None
            self.target_embedding.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """tokens_BS -> logits_BHV."""
        assert self.embedding is not None and self.final_norm is not None and self.head is not None
        first, second = x.chunk(2, -1)
        encoded, x = self.embedding(first), self.target_embedding(second)
        table = (self.get_buffer("cos")[: x.shape[1]], self.get_buffer("sin")[: x.shape[1]])
        encoders = [block for block in self.layers.values() if isinstance(block, PlainEncoderBlock)]
        for block in encoders:
            encoded = block(encoded, *table)
        encoded = self.encoder_norm(encoded)
        for block in self.layers.values():
            if isinstance(block, PlainCrossBlock):
                x = block.crossed(x, *table, encoded)
        logits: Tensor = self.head(self.final_norm(x))
        return logits
