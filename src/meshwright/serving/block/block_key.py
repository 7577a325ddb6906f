"""What is in a block, as a key: its tokens and whose weights made them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def block_keys(
    token_ids: Sequence[int] | NDArray[np.int32], block_tokens: int, adapter: str = ""
) -> tuple[Hashable, ...]:
    """A key for every full block of these tokens. Equal keys behind equal keys are equal tokens: the tokens are the
    key, not a hash of them, so nobody can make another's blocks theirs."""
    tokens = np.asarray(token_ids, np.int32)
    num = len(tokens) // block_tokens
    keys: list[Hashable] = [tokens[i * block_tokens : (i + 1) * block_tokens].tobytes() for i in range(num)]
    if adapter and keys:
        keys[0] = (adapter, keys[0])
    return tuple(keys)
