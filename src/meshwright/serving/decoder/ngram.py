"""N-grams: what followed the last tokens when they came before is proposed again.

Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding): good where an output repeats its prompt (summaries, edits, code),
and free. The last 3 tokens are looked for first, then 2, then 1, as there.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.decoder.decoder import OpenRunner
from meshwright.serving.engine.proposer import Continuation, ProposalPlace
from meshwright.serving.policy.sequence import Sequence
from meshwright.specs.error import PlanError
from meshwright.specs.option import option


@dataclass(frozen=True)
class NGram:
    """What followed the last tokens when they came before, in the prompt or the output, is proposed."""

    tokens: int = option(4, "Proposed to a sequence in a step, at most.", least=1)
    longest: int = option(3, "Last tokens that are looked for first.", least=1)
    shortest: int = option(1, "And at least.", least=1)
    acceptance: float = option(0.0, "Share that is accepted, for simulated engines.", least=0)

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise PlanError(
                f"ngram: shortest {self.shortest}, longest {self.longest}", allowed="shortest <= longest"
            )

    @property
    def draft(self) -> str:
        """No model."""
        return ""

    def proposer(self, opened: OpenRunner, vocabulary_size: int) -> NGramProposer:
        """It needs nothing."""
        return NGramProposer(self.longest, self.shortest)


@dataclass(frozen=True)
class NGramProposer:
    """Holds nothing."""

    longest: int
    shortest: int

    def propose(self, asked: Items[ProposalPlace]) -> list[Continuation]:
        """See `Proposer`."""
        found = (what_followed(each.tokens, self.longest, self.shortest, each.most) for each in asked)
        return [Continuation(tokens, [None] * len(tokens)) for tokens in found]

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def what_followed(tokens: NDArray[np.int32], longest: int, shortest: int, most: int) -> list[int]:
    """At most `most` tokens that followed the last place where the longest possible end of `tokens` stood before; of places
    behind which that many tokens are, where there is one. [] where not even the shortest end did.
    """
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        end = tokens[-size:]
        starts = np.flatnonzero(tokens[:-size] == end[0])
        for offset in range(1, size):
            starts = starts[tokens[starts + offset] == end[offset]]
        if len(starts):
            whole = starts[starts + size + most <= len(tokens)]
            begin = int((whole if len(whole) else starts)[-1]) + size
            found: list[int] = tokens[begin : begin + most].tolist()
            return found
    return []
