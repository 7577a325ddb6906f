"""The most that one step, and one request, may have."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.error import SpecError
from meshwright.specs.option import option


@dataclass(frozen=True)
class Limits:
    """Of a scheduler."""

    max_batch_tokens: int = option(2048, "Tokens that one step computes.", least=1)
    max_sequences: int = option(256, "Sequences that run at the same time.", least=1)
    max_model_tokens: int = option(131072, "Tokens of a prompt and its output together.", least=2)

    def __post_init__(self) -> None:
        if not 1 <= self.max_sequences <= self.max_batch_tokens or self.max_model_tokens < 2:
            raise SpecError(
                f"{self.max_sequences} sequences, {self.max_batch_tokens} tokens a step, {self.max_model_tokens} a request",
                allowed="at least one sequence, at least as many tokens a step, at least two tokens a request",
            )
