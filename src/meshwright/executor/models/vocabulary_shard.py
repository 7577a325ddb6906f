"""A device's rows of embedding and head, where the vocabulary is split over all devices of a pipeline.

Shapes: B samples, S tokens, T tokens of all samples, E hidden size, V vocabulary, R rows of one device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, HEAD_WEIGHT
from meshwright.executor.models.initialisation import initial_value
from meshwright.executor.ops.weight_gradient_queue import accumulate_into
from meshwright.specs.model import ModelSpec


class VocabularyShard(nn.Module):
    """Rows `number` x R to (`number` + 1) x R of both tables, R = V / `num_shards` rounded up; rows behind V are padding.

    Its parameters are named like the whole tables with the number behind ("head.weight.2"); their first values are
    those of the same rows of the whole table, padding is zero. A tied head is the embedding's parameter.
    """

    def __init__(
        self,
        model: ModelSpec,
        number: int,
        num_shards: int,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.number = number
        rows = -(-model.vocabulary_size // num_shards)
        self.first_row = min(number * rows, model.vocabulary_size)
        self.num_rows = min(rows, model.vocabulary_size - self.first_row)

        def table(name: str) -> nn.Parameter:
            shape = (model.vocabulary_size, model.hidden_size)
            whole = initial_value(name, shape, model.num_layers, seed, dtype)
            part_RE = torch.zeros(rows, model.hidden_size, dtype=dtype)
            part_RE[: self.num_rows] = whole[self.first_row : self.first_row + self.num_rows]
            return nn.Parameter(part_RE.to(device))

        self.embedding = table(EMBEDDING_WEIGHT)
        self.head = self.embedding if model.has_tied_embeddings else table(HEAD_WEIGHT)

    def global_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their name in the whole model and their shard's number."""
        named = {f"{EMBEDDING_WEIGHT}.{self.number}": self.embedding}
        if self.head is not self.embedding:
            named[f"{HEAD_WEIGHT}.{self.number}"] = self.head
        return named

    def lookup(self, tokens_BS: Tensor) -> Tensor:
        """Rows of the tokens that are here, zero for all others: [B, S, E]."""
        is_here_BS, place_BS = self._places(tokens_BS)
        return self.embedding.detach()[place_BS] * is_here_BS[..., None]

    def accumulate_lookup(self, tokens_BS: Tensor, dy_BSE: Tensor) -> None:
        """Add each token's gradient to its row, where that is here."""
        is_here_BS, place_BS = self._places(tokens_BS)
        gradient_RE = torch.zeros_like(self.embedding)
        gradient_RE.index_add_(0, place_BS[is_here_BS], dy_BSE[is_here_BS])
        accumulate_into(self.embedding, gradient_RE)

    def _places(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are here, and their rows (0 for others)."""
        place_BS = tokens_BS - self.first_row
        is_here_BS = (place_BS >= 0) & (place_BS < self.num_rows)
        return is_here_BS, torch.where(is_here_BS, place_BS, 0)
