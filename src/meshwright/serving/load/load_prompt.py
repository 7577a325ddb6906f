"""Prompts of recorded requests, of which only lengths and common prefixes are known: tokens that agree where those do."""

from __future__ import annotations

import random

from meshwright.serving.request.request import Request

FIRST_TOKEN = 100  # below it many vocabularies have special tokens


def prompt_of(request: Request, block_tokens: int, vocabulary: int, seed: int) -> list[int]:
    """Token ids, from `FIRST_TOKEN` to below `vocabulary`: its own where it has them; else for each block key the same as for
    every other request with that key, and behind them such as no other request has."""
    if request.prompt is not None:
        return list(request.prompt)
    tokens: list[int] = []
    for key in request.block_keys:
        tokens += _tokens(f"{seed}/block/{key!r}", block_tokens, vocabulary)
    rest = request.num_prompt_tokens - len(tokens)
    return tokens + _tokens(f"{seed}/request/{request.id}", rest, vocabulary)


def _tokens(key: str, num: int, vocabulary: int) -> list[int]:
    draw = random.Random(key)
    first = min(FIRST_TOKEN, vocabulary - 1)
    return [draw.randrange(first, vocabulary) for _ in range(num)]
