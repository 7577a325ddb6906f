"""Requests of a JSON-lines text: recorded lengths with hashes of prefixes (Mooncake), or prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from meshwright.serving.request.request import Request
from meshwright.serving.request.request_table import refuse_cell, whole_number
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError

Encode = Callable[[str], Sequence[int]]
HASHED_TOKENS = 512  # tokens behind one hash id (Mooncake, arXiv 2407.00079; its traces' README)
MS = 1e-3
DEFAULT_OUTPUT_TOKENS = 16  # of a prompt that names no limit, as in OpenAI's /v1/completions


def requests_of_lines(
    lines: Iterable[str],
    name: str,
    *,
    block_tokens: int,
    encode: Encode | None = None,
    first: int | None = None,
) -> Iterator[Request]:
    """The first requests of a text with one JSON object a line.

    Either ``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``, or ``{"prompt": text or token ids}`` with
    "max_tokens", "output_tokens", "arrival_s", "id", "user", "priority" where they are wanted.

    Args:
        block_tokens: of the pool that will hold them: a hash of 512 tokens becomes as many keys as blocks fit.
        encode: makes token ids of a prompt's text.

    Raises:
        SpecError: names file, line and field.
    """
    read = _HashedReader(block_tokens)
    for number, line in enumerate(islice((line for line in lines if line.strip()), first), 1):
        place = f"{name}, line {number}"
        try:
            row = json_of(line)
        except ValueError as error:
            raise SpecError(f"{place}: no JSON ({error})", allowed="one object a line") from None
        if not isinstance(row, dict):
            raise SpecError(f"{place}: {type(row).__name__}", allowed="one object a line")
        yield _prompted(row, number, place, encode) if "prompt" in row else read(row, number, place)


class _HashedReader:
    """Lengths and hashes. Keys of one hash are made once: a trace names most of them thousands of times."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._keys: dict[int, tuple[int, ...]] = {}

    def __call__(self, row: Mapping[str, Any], number: int, place: str) -> Request:
        prompt, output = (whole_number(row, column, place) for column in ("input_length", "output_length"))
        arrival_s = _seconds(row, "timestamp", place) * MS
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(each) is int for each in hashes):
            refuse_cell(place, "hash_ids", hashes, "a list of whole numbers")
        keys = self._block_keys(hashes, prompt) if hashes else ()
        return Request(str(number), prompt, output, arrival_s, num_output_tokens=output, block_keys=keys)

    def _block_keys(self, hashes: list[int], num_tokens: int) -> tuple[int, ...]:
        """A key for each full block of the prompt."""
        size = self._block_tokens
        if HASHED_TOKENS % size:
            raise SpecError(
                f"hashes of {HASHED_TOKENS} tokens for blocks of {size}",
                allowed=f"a block size that divides {HASHED_TOKENS}",
            )
        share = HASHED_TOKENS // size
        for each in hashes:
            if each not in self._keys:
                self._keys[each] = tuple(range(each * share, (each + 1) * share))
        parts = chain.from_iterable(self._keys[each] for each in hashes)
        return tuple(islice(parts, num_tokens // size))


def _prompted(row: Mapping[str, Any], number: int, place: str, encode: Encode | None) -> Request:
    prompt = row["prompt"]
    if isinstance(prompt, str):
        if encode is None:
            raise SpecError(
                f"{place}, column 'prompt': text, and no tokenizer to cut it",
                allowed="token ids, or text beside a model with a tokenizer",
            )
        prompt = encode(prompt)
    elif not isinstance(prompt, list) or not all(type(token) is int and token >= 0 for token in prompt):
        refuse_cell(place, "prompt", prompt, "text, or a list of token ids")
    if not prompt:
        refuse_cell(place, "prompt", row["prompt"], "at least one token")
    known = whole_number(row, "output_tokens", place) if "output_tokens" in row else None
    most = whole_number(row, "max_tokens", place) if "max_tokens" in row else known or DEFAULT_OUTPUT_TOKENS
    return Request(
        str(row.get("id", number)), len(prompt), most, _seconds(row, "arrival_s", place), prompt, known,
        user=str(row.get("user", "")), priority=_priority(row, place),
    )  # fmt: skip


def _priority(row: Mapping[str, Any], place: str) -> int:
    value = row.get("priority", 0)
    if type(value) is not int:
        refuse_cell(place, "priority", value, "a whole number; smaller goes first")
    return int(value)


def _seconds(row: Mapping[str, Any], column: str, place: str) -> float:
    value = row.get(column, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < float("inf"):
        refuse_cell(place, column, value, "a number from 0")
    return float(value)
