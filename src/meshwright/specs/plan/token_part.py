"""Token parts: how many samples of a microbatch each of its parts has; one's exchanges run beside another's computes."""

from __future__ import annotations

from meshwright.specs.error import PlanError

TokenParts = int | str  # so many equal parts, or shares such as "3:1"
ALLOWED = 'a whole number of equal parts from 1, or shares such as "3:1"'


def shares_of(token_parts: TokenParts) -> tuple[int, ...]:
    """The share of every part. Raises PlanError for what is neither a number nor shares."""
    if type(token_parts) is int and token_parts >= 1:
        return (1,) * token_parts
    words = token_parts.split(":") if isinstance(token_parts, str) else []
    if not words or not all(word.isascii() and word.isdigit() and int(word) >= 1 for word in words):
        raise PlanError(f"token_parts is {token_parts!r}", allowed=ALLOWED)
    numbers = tuple(map(int, words))
    return numbers if len(numbers) > 1 else (1,) * numbers[0]


def samples_of_parts(token_parts: TokenParts, microbatch_size: int) -> tuple[int, ...]:
    """Samples of every part. Raises PlanError where they would not be whole."""
    shares = shares_of(token_parts)
    each, rest = divmod(microbatch_size, sum(shares))
    if rest:
        raise PlanError(
            f"token_parts is {token_parts!r} with microbatch_size {microbatch_size}",
            allowed=f"shares whose sum divides it: {sum(shares)} of them need a multiple of {sum(shares)} samples",
            next="take a larger microbatch_size, or other shares",
        )
    return tuple(share * each for share in shares)
