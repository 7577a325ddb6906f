"""A device's rows of embedding and head, where the vocabulary is split over all devices of a pipeline.

Shapes: B samples, S tokens, T tokens of all samples, E hidden size, V vocabulary, R rows of one device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.executor.layout.tensor_shard import TABLES, WHOLE, TensorShard
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, HEAD_WEIGHT
from meshwright.executor.models.weights.initialisation import ParameterSource, RandomValues
from meshwright.executor.ops.weight_gradient_queue import accumulate_into
from meshwright.specs.model.adaptation import trains
from meshwright.specs.model.model import ModelSpec


@dataclass(frozen=True)
class TableShard(TensorShard):
    """Tables are divided by rows, everything else is on this device only."""

    def dim(self, name: str) -> int | None:
        """The dimension of a parameter that is divided."""
        return super().dim(name) if name.endswith(TABLES) else WHOLE


class VocabularyShard(nn.Module):
    """Rows `number` x R to (`number` + 1) x R of both tables, R = V / `num_shards` rounded up; rows behind V are padding.

    Its parameters have the names of the whole tables, and as first values those of the same rows (`source`'s, or drawn by
    `seed`); padding is zero. A tied head is the embedding's parameter. ``tables`` says which rows they are, to who puts the
    whole tables together.
    """

    def __init__(
        self,
        model: ModelSpec,
        number: int,
        num_shards: int,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        source: ParameterSource | None = None,
    ) -> None:
        super().__init__()
        self.tables = TableShard(model, num_shards, number)
        self.first_row, end = self.tables.rows(model.vocabulary_size)
        self.num_rows = end - self.first_row
        values = RandomValues(model.num_layers, seed) if source is None else source

        def table(name: str) -> nn.Parameter:
            shape = (model.vocabulary_size, model.hidden_size)
            whole = values.value(name, shape, dtype)
            return nn.Parameter(self.tables.local(name, whole).to(device), requires_grad=trains(model, name))

        self.embedding = table(EMBEDDING_WEIGHT)
        self.head = self.embedding if model.has_tied_embeddings else table(HEAD_WEIGHT)

    def global_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their name in the whole model."""
        named = {EMBEDDING_WEIGHT: self.embedding}
        if self.head is not self.embedding:
            named[HEAD_WEIGHT] = self.head
        return named

    def lookup(self, tokens_BS: Tensor) -> Tensor:
        """Rows of the tokens that are here, zero for all others: [B, S, E]."""
        is_here_BS, place_BS = self._places(tokens_BS)
        return self.embedding.detach()[place_BS] * is_here_BS[..., None]

    def accumulate_lookup(self, tokens_BS: Tensor, dy_BSE: Tensor) -> None:
        """Add each token's gradient to its row, where that is here, and the table trains."""
        if not self.embedding.requires_grad:
            return
        is_here_BS, place_BS = self._places(tokens_BS)
        gradient_RE = torch.zeros_like(self.embedding)
        gradient_RE.index_add_(0, place_BS[is_here_BS], dy_BSE[is_here_BS])
        accumulate_into(self.embedding, gradient_RE)

    def _places(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are here, and their rows (0 for others)."""
        place_BS = tokens_BS - self.first_row
        is_here_BS = (place_BS >= 0) & (place_BS < self.num_rows)
        return is_here_BS, torch.where(is_here_BS, place_BS, 0)
