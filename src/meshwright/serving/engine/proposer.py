"""What a decoder is asked for, and what it proposes: tokens that may follow, which one step of the model verifies."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.sampling.proposed_token import ProposedToken
from meshwright.serving.sampling.sampler import Drafter


class ProposalPlace(NamedTuple):
    """A sequence to which tokens may be proposed.

    Args:
        sequence: which.
        tokens: int32, prompt and output, as far as they are known; valid during the call.
        most: proposals that there is room for, 1 or more.
        drafter: makes what draws proposals from another model's logits as this sequence draws its tokens.
    """

    sequence: Sequence
    tokens: NDArray[np.int32]
    most: int
    drafter: Callable[[], Drafter]


@dataclass
class Continuation:
    """Tokens, and of each what it was drawn from; None where it was not drawn (it then comes where the sequence itself draws
    it)."""

    token_ids: list[int] = field(default_factory=list)
    drawn: list[ProposedToken | None] = field(default_factory=list)

    def add(self, token_id: int, drawn: ProposedToken | None = None) -> None:
        """One more."""
        self.token_ids.append(token_id)
        self.drawn.append(drawn)

    def first(self, num: int) -> Continuation:
        """The beginning of it."""
        return Continuation(self.token_ids[:num], self.drawn[:num])


class Proposer(Protocol):
    """Proposes tokens. It is called by one thread."""

    def propose(self, asked: Items[ProposalPlace]) -> list[Continuation]:
        """For each at most as many tokens as it asks for; none where it knows nothing."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended, or waits: nothing is asked for it soon."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
