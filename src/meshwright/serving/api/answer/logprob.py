"""Log-probabilities of tokens, in the two forms in which OpenAI's clients know them."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.serving.api.body.chat import ChatLogprobs, ChosenToken, LikelyToken
from meshwright.serving.api.body.completion import CompletionLogprobs
from meshwright.serving.api.generation.generation import TokenLogprobs
from meshwright.serving.api.generation.model_text import ModelText
from meshwright.serving.sampling.logprobs import TopLogprobs

LEAST = -9999.0  # a token that cannot be drawn has no finite log-probability, and JSON no infinity


def token_text(text: ModelText, token_id: int) -> str:
    """A token as text; bytes that are no character of their own are marked so."""
    return text.token_bytes(token_id).decode("utf-8", "replace")


def completion_logprobs(
    text: ModelText, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], offset: int
) -> CompletionLogprobs:
    """Columns over tokens, the first of which begins at character `offset` of the output."""
    tokens = [token_text(text, token) for token in token_ids]
    offsets, at = [], offset
    for token in tokens:
        offsets.append(at)
        at += len(token)
    best: list[dict[str, float] | None] = [
        {token_text(text, token): max(value, LEAST) for token, value in _pairs(top)} for _, top in logprobs
    ]
    drawn: list[float | None] = [max(own, LEAST) for own, _ in logprobs]
    return CompletionLogprobs(tokens=tokens, token_logprobs=drawn, top_logprobs=best, text_offset=offsets)


def chat_logprobs(
    text: ModelText, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_best: int
) -> ChatLogprobs:
    """One object a token, with the `num_best` most probable ones there."""
    return ChatLogprobs(
        content=[
            ChosenToken(
                **_likely(text, token, own).model_dump(),
                top_logprobs=[_likely(text, *each) for each in _pairs(top)[:num_best]],
            )
            for token, (own, top) in zip(token_ids, logprobs)
        ]
    )


def _pairs(top: TopLogprobs | None) -> list[tuple[int, float]]:
    return [] if top is None else list(zip(top.token_ids.tolist(), top.logprobs.tolist()))


def _likely(text: ModelText, token_id: int, value: float) -> LikelyToken:
    found = text.token_bytes(token_id)
    return LikelyToken(token=found.decode("utf-8", "replace"), logprob=max(value, LEAST), bytes=list(found))
