"""What a front knows of a prompt: equal beginnings have equal keys, whatever the path, and nonsense has none."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import pytest

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.front.prompt_keys import TEXT_BYTES, routed_request

SYSTEM = {"role": "system", "content": "You answer in rhymes. " * 20}


def keys_of(**fields: Any) -> tuple[Hashable, ...]:
    return routed_request(json.dumps(fields).encode()).block_keys


def num_alike(one: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> int:
    return next(
        (n for n, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def test_tokens_have_the_keys_of_a_file_of_requests() -> None:
    """But for the model's name, which stands where an adapter's does."""
    tokens = list(range(100, 140))
    assert keys_of(model="m", prompt=tokens) == block_keys(tokens, 16, "m")
    assert keys_of(model="m", prompt=[tokens, [1]]) == block_keys(tokens, 16, "m")


def test_a_chat_that_goes_on_begins_as_it_began() -> None:
    turns = [SYSTEM, {"role": "user", "content": "Hello, who are you? " * 9}]
    more = [
        *turns,
        {"role": "assistant", "content": "A poet, and you know it."},
        {"role": "user", "content": "Go on."},
    ]
    first, second = keys_of(model="m", messages=turns), keys_of(model="m", messages=more)
    assert len(first) >= 8 and num_alike(first, second) == len(first)
    assert num_alike(first, keys_of(model="n", messages=turns)) == 0, "another model's blocks are others"
    other = [SYSTEM, {"role": "user", "content": "Good morning."}]
    assert 0 < num_alike(first, keys_of(model="m", messages=other)) < len(first)
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert num_alike(first, keys_of(model="m", messages=turns, tools=tools)) == 0, (
        "tools stand before messages"
    )


def test_texts_are_cut_into_runs() -> None:
    text = "ä" * TEXT_BYTES
    keys = keys_of(model="m", prompt=text)
    assert len(keys) == 2 and keys == keys_of(model="m", prompt=[text, "b"]) == keys_of(
        model="m", prompt=text + "b"
    )
    assert keys_of(model="m", input=text, instructions="be brief") != keys_of(model="m", input=text) == keys


NONSENSE = (
    b"", b"{", b"[1]", b'"a"', b'{"prompt": [[]]}', b'{"prompt": [99999999999]}', b'{"prompt": {"a": 1}}', b'{"messages": 1}',
    b"[" * 9000,
)  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE)
def test_nonsense_has_no_keys(body: bytes) -> None:
    assert routed_request(body).block_keys == ()
