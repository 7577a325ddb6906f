"""/v1/completions: text, or token ids, is continued."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meshwright.serving.api.body.sampling import FinishReason, SamplingBody, TokenUsage
from meshwright.serving.api.body.value import (
    MOST_LOGPROBS,
    Answered,
    Count,
    Prompts,
    Switch,
    Told,
    Whole,
)

DEFAULT_TOKENS = 16  # OpenAI's own


class CompletionBody(SamplingBody):
    """One prompt or several, as text or as token ids. `add_special_tokens` is an extension, named as vLLM names it."""

    prompt: Prompts
    max_tokens: Count | None = DEFAULT_TOKENS
    logprobs: Annotated[Whole, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: Switch | None = None
    best_of: Annotated[Whole, Field(ge=1)] | None = None
    suffix: str | None = None
    add_special_tokens: Switch = True


class CompletionLogprobs(Answered):
    """Log-probabilities of a completion's tokens, as columns."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answered):
    """One output: whole, or in a stream the next part of it. Token ids where `return_token_ids` asked for them."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: Told[str | int] = None
    prompt_token_ids: Told[list[int]] = None
    token_ids: Told[list[int]] = None


class Completion(Answered):
    """The answer, or one chunk of it in a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Told[TokenUsage] = None
