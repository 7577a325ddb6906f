"""The ends of a served decoder: tokens to hidden states, and hidden states of the asked rows to logits.

Shapes: T new tokens, E hidden size, R rows whose logits are asked for, V rows of the vocabulary here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.serving.family_traits import FamilyTraits
from meshwright.executor.serving.packed_step import PackedStep
from meshwright.executor.serving.paged_layer import Sum
from meshwright.executor.serving.weight.stage_weights import StageWeights
from meshwright.serving.weight.weight_place import EMBEDDING, HEAD
from meshwright.specs.model.model import ModelSpec


class PagedEmbedding:
    """The table of tokens, of which every tensor-parallel rank has some rows, and learned positions where there are any."""

    def __init__(
        self, model: ModelSpec, traits: FamilyTraits, shard: TensorShard, total: Sum, weights: StageWeights
    ) -> None:
        self.vocabulary_size, self.total = model.vocabulary_size, total
        self.rows = shard.rows(model.vocabulary_size)
        self.table, self.positions = weights.tensor(EMBEDDING), weights.optional("positions")
        scale = traits.embedding_scale
        self.scale = (
            None if scale == 1.0 else torch.tensor(scale, dtype=self.table.dtype, device=self.table.device)
        )

    def __call__(self, tokens_T: Tensor, step: PackedStep) -> Tensor:
        """[T] -> [T, E]."""
        low, high = self.rows
        if high - low == self.vocabulary_size:
            x_TE = F.embedding(tokens_T, self.table)
        else:
            is_here_T = (tokens_T >= low) & (tokens_T < high)
            places_T = torch.where(is_here_T, tokens_T - low, 0)
            x_TE = self.total(F.embedding(places_T, self.table) * is_here_T[:, None])
        if self.scale is not None:
            x_TE = x_TE * self.scale
        return x_TE if self.positions is None else x_TE + F.embedding(step.positions_T, self.positions)


class PagedHead:
    """The last norm, and this rank's rows of the head; a tied one is the embedding's table. What the norm gave last is kept,
    for who wants vectors of texts."""

    def __init__(self, model: ModelSpec, weights: StageWeights) -> None:
        self.norm = weights.norm("final_norm")
        self.weight = weights.tensor(EMBEDDING if model.has_tied_embeddings else HEAD)
        self.normed_RE: Tensor | None = None

    def __call__(self, x_TE: Tensor, step: PackedStep) -> Tensor:
        """[T, E] -> logits [R, V]."""
        self.normed_RE = self.norm(x_TE.index_select(0, step.rows_R))
        return F.linear(self.normed_RE, self.weight)
