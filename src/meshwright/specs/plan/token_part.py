"""Token parts: what of a microbatch each of its parts is; one's exchanges run beside another's computes.

Parts are of its samples, or of every sequence: chunks, in the order of the sequence, each of which attends to the keys and
values of those before it, too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from meshwright.specs.error import PlanError

TokenParts = int | str  # so many equal parts, or shares such as "3:1"
PartsOf = Literal["samples", "sequence"]
PARTS_OF: tuple[PartsOf, ...] = ("samples", "sequence")
MOST_PARTS = 4096  # a list of each is made before anything asks whether they divide what they are of
MOST_DIGITS = 9  # of a share
ALLOWED = f'a whole number of equal parts from 1 to {MOST_PARTS}, or shares such as "3:1"'


class TokenPart(NamedTuple):
    """So many samples of a microbatch, and of each sequence ``num_tokens`` tokens behind the ``num_earlier`` of earlier
    parts."""

    num_samples: int
    num_tokens: int
    num_earlier: int = 0


def shares_of(token_parts: TokenParts) -> tuple[int, ...]:
    """The share of every part. Raises PlanError for what is neither a number nor shares."""
    if type(token_parts) is int and 1 <= token_parts <= MOST_PARTS:
        return (1,) * token_parts
    words = token_parts.split(":") if isinstance(token_parts, str) else []
    if not 1 <= len(words) <= MOST_PARTS or not all(map(_is_share, words)):
        raise PlanError(f"token_parts is {token_parts!r}", allowed=ALLOWED)
    numbers = tuple(map(int, words))
    return numbers if len(numbers) > 1 else shares_of(numbers[0])


def _is_share(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= MOST_DIGITS and int(word) >= 1


def parts_of_microbatch(
    token_parts: TokenParts, parts_of: PartsOf, num_samples: int, sequence_length: int
) -> tuple[TokenPart, ...]:
    """The parts of a microbatch of so many samples. Raises PlanError where their samples, or tokens, would not be whole."""
    shares, is_of_samples = shares_of(token_parts), parts_of == "samples"
    each, rest = divmod(num_samples if is_of_samples else sequence_length, sum(shares))
    if rest:
        beside = (
            f"microbatch_size {num_samples}" if is_of_samples else f"sequences of {sequence_length} tokens"
        )
        raise PlanError(
            f"token_parts is {token_parts!r} with {beside}",
            allowed=f"shares whose sum divides it: {sum(shares)} of them need a multiple of {sum(shares)}",
            next=f"take {'a larger microbatch_size' if is_of_samples else 'other sequences'}, or other shares",
        )
    if is_of_samples:
        return tuple(TokenPart(share * each, sequence_length) for share in shares)
    return tuple(
        TokenPart(num_samples, share * each, each * sum(shares[:number]))
        for number, share in enumerate(shares)
    )


def least_samples(token_parts: TokenParts, parts_of: PartsOf) -> int:
    """A microbatch has a multiple of so many samples, so that its parts are whole."""
    return sum(shares_of(token_parts)) if parts_of == "samples" else 1
