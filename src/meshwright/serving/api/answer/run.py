"""An answer in the making: generations under way, told whole or in chunks, and closed in every case."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from pydantic import BaseModel

from meshwright.serving.api.body.sampling import TokenUsage
from meshwright.serving.api.generation.generation import Generation


class AnswerRun(Protocol):
    """An answer in the making."""

    async def whole(self) -> BaseModel:
        """The whole answer. Raises ApiError where a generation fails."""
        ...

    def chunks(self) -> AsyncIterator[BaseModel]:
        """It, as it comes. Raises ApiError where a generation fails."""
        ...

    def close(self) -> None:
        """Nothing more is wanted of it: what still runs is aborted."""
        ...


class Generations(list[Generation]):
    """Those of one answer."""

    def close(self) -> None:
        """End them all."""
        for each in self:
            each.close()

    @property
    def usage(self) -> TokenUsage:
        """Tokens that went in and came out."""
        return usage_of(self)


def usage_of(generations: Sequence[Generation]) -> TokenUsage:
    """Tokens that went in and came out."""
    prompts = sum(each.request.num_prompt_tokens for each in generations)
    outputs = sum(each.num_output_tokens for each in generations)
    return TokenUsage(prompt_tokens=prompts, completion_tokens=outputs, total_tokens=prompts + outputs)


def now() -> int:
    """Seconds since 1970, as answers say when they were made."""
    return int(time.time())
