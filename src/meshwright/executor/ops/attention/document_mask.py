"""Documents packed into sequences, as attention sees them: a token sees no token of an earlier document.

Shapes: B samples, S tokens, K key-value heads, G query heads per key-value head, N = B K.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from meshwright.specs.error import ExecutionError


class DocumentMask:
    """Made once for a microbatch and used by all its layers. ``starts_BS``: for every token the place in its sequence where
    its document begins (integers; 0 where the document began before the sequence). Two tokens are of one document where
    their starts are equal.

    Raises ExecutionError for starts that do not rise along a sequence, lie behind their token, or are not its own start.
    """

    def __init__(self, starts_BS: Tensor) -> None:
        places_S = torch.arange(starts_BS.shape[-1], device=starts_BS.device)
        self.starts_BS, self.positions_BS = starts_BS, places_S - starts_BS
        is_start_BS = starts_BS == places_S
        # a token either begins a document or is of the one before it
        is_same_BS = starts_BS == torch.roll(starts_BS, 1, -1)
        is_same_BS[..., 0] = False
        if starts_BS.dim() != 2 or not bool((is_start_BS | is_same_BS).all()):
            raise ExecutionError(
                f"starts of documents of shape {tuple(starts_BS.shape)} that are not places in their sequences",
                allowed="[B, S]: every token's own place, or the start of the token before it",
            )

    @cached_property
    def _least(self) -> list[int]:
        """By token: where the first document of any sample begins."""
        return self.starts_BS.amin(0).tolist()

    @cached_property
    def _most(self) -> list[int]:
        """By token: where the last document of any sample begins."""
        return self.starts_BS.amax(0).tolist()

    def first_key(self, low: int) -> int:
        """The first token that any query from `low` on may see."""
        return self._least[low]

    def hide(self, scores: Tensor, low: int, high: int) -> None:
        """-inf in place where a key is of another document: scores [N, (high - low) G, high - first_key(low)] of the queries
        from `low` to `high` and the keys from `first_key(low)` to `high`.
        """
        first, last = self.first_key(low), self._most[high - 1]
        if last <= first:
            return
        num_samples, num_tokens = len(self.starts_BS), high - low
        keys = torch.arange(first, last, device=scores.device)
        hidden = keys < self.starts_BS[:, low:high, None]
        cut = scores.view(num_samples, -1, num_tokens, scores.shape[1] // num_tokens, scores.shape[2])
        cut[..., : last - first].masked_fill_(hidden[:, None, :, None], -math.inf)

    def visible(self) -> Tensor:
        """True where a query (row) may see a key: its own document up to itself; [B, 1, S, S]."""
        places_S = torch.arange(self.starts_BS.shape[1], device=self.starts_BS.device)
        is_own = places_S >= self.starts_BS[:, :, None]
        return (is_own & (places_S <= places_S[:, None]))[:, None]
