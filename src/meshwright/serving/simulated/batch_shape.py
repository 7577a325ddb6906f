"""BatchShape: what of a batch decides how long its step takes: tokens, what they attend to, rows whose logits are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class BatchShape(NamedTuple):
    """One step's work, in sums over its requests.

    Attributes:
        chunk_tokens: prompt tokens computed in this step.
        chunk_pairs: pairs of such a token and a token that it sees, itself among them.
        num_chunks: requests that these tokens are of.
        num_decodes: requests that get one more token.
        num_context: tokens that those see, the new ones among them.
    """

    chunk_tokens: int = 0
    chunk_pairs: int = 0
    num_chunks: int = 0
    num_decodes: int = 0
    num_context: int = 0

    @classmethod
    def of(
        cls, chunks: Iterable[tuple[int, int]] = (), num_decodes: int = 0, num_context: int = 0
    ) -> BatchShape:
        """From (start, number of tokens) of every chunk, and the decodes."""
        tokens = pairs = number = 0
        for start, length in chunks:
            tokens += length
            pairs += length * start + length * (length + 1) // 2
            number += 1
        return cls(tokens, pairs, number, num_decodes, num_context)

    def share(self, number: int) -> BatchShape:
        """The largest of so many parts, of sequences that are dealt out evenly."""
        return BatchShape(*(-(-each // number) for each in self))

    @property
    def num_tokens(self) -> int:
        """Rows of the linear layers."""
        return self.chunk_tokens + self.num_decodes

    @property
    def num_rows(self) -> int:
        """Rows whose logits are wanted: of every chunk one is counted, whether it is its prompt's last or not."""
        return self.num_chunks + self.num_decodes
