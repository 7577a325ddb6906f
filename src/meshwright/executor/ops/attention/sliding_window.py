"""Attention through a window: a token sees only the last tokens before it, within its document where there are documents.

Shapes: B samples, S tokens.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from meshwright.executor.ops.attention.document_mask import DocumentMask


class SlidingWindow(DocumentMask):
    """What attention asks of a mask, where the first visible key is the later one of the document's start and the
    window's. ``window``: tokens that a token sees, itself among them.
    """

    def __init__(self, window: int, documents: DocumentMask) -> None:
        places_S = torch.arange(documents.starts_BS.shape[1], device=documents.starts_BS.device)
        self.positions_BS = documents.positions_BS
        self.starts_BS = torch.maximum(documents.starts_BS, places_S - window + 1)


def within_window(
    window: int, num_tokens: int, device: torch.device, documents: DocumentMask | None
) -> DocumentMask | None:
    """What is visible of `num_tokens` tokens; `window` 0, or one as long as the sequence, leaves it as it is."""
    if not 0 < window < num_tokens:
        return documents
    return (
        _plain_window(window, num_tokens, device) if documents is None else SlidingWindow(window, documents)
    )


@lru_cache(maxsize=16)
def _plain_window(window: int, num_tokens: int, device: torch.device) -> SlidingWindow:
    starts_BS = torch.zeros(1, num_tokens, dtype=torch.int64, device=device)
    return SlidingWindow(window, DocumentMask(starts_BS))
