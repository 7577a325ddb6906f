"""What fills the slot `decoder`: how many tokens are proposed to a sequence in a step, and who proposes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from meshwright.serving.engine.proposer import Proposer
from meshwright.serving.engine.runner import Runner
from meshwright.specs.error import PlanError
from meshwright.specs.slot import resolve

ONE_TOKEN = "one_token"
OpenRunner = Callable[[str], Runner]  # a model's folder -> the model, computed by the engine that was chosen


@runtime_checkable
class TokenDecoder(Protocol):
    """The protocol.

    Attributes:
        tokens: that are proposed to a sequence in a step, at most; 0: a step gives one token, as ever.
        acceptance: the share of proposals, each behind accepted ones, that are accepted; for simulated engines, which have no
            tokens; 0: nobody knows.
        draft: a second model, by which proposals are made; "": none.
    """

    @property
    def tokens(self) -> int:
        """See above."""
        ...

    @property
    def acceptance(self) -> float:
        """See above."""
        ...

    @property
    def draft(self) -> str:
        """See above."""
        ...

    def proposer(self, opened: OpenRunner, vocabulary_size: int) -> Proposer | None:
        """Who proposes, to a model with these tokens; None where nothing is proposed."""
        ...


@dataclass(frozen=True)
class OneToken:
    """One token a step."""

    @property
    def tokens(self) -> int:
        """None beside it."""
        return 0

    @property
    def acceptance(self) -> float:
        """Of nothing."""
        return 0.0

    @property
    def draft(self) -> str:
        """None."""
        return ""

    def proposer(self, opened: OpenRunner, vocabulary_size: int) -> Proposer | None:
        """Nobody."""
        return None


def decoder_of(reference: str) -> TokenDecoder:
    """What stands behind a name in the slot. Raises PlanError where nobody knows it, or it is no such thing."""
    found = OneToken() if reference == ONE_TOKEN else resolve("decoder", reference)
    if not isinstance(found, TokenDecoder) or found.tokens < 0 or not 0.0 <= found.acceptance <= 1.0:
        raise PlanError(
            f"decoder is {reference}",
            allowed="what has tokens (0 or more), acceptance (0 to 1), draft and proposer(..)",
        )
    return found
