"""Tokens between attention and linear layers: from ranks that have more than the mean to those that have less, and back.

Attention leaves ranks with unequal tokens. Linear layers work token by token, so any rank may do any of them: what a rank has
beyond its share goes to ranks of its own node that lack some, and only the rest to other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from meshwright.specs.error import PlanError


class TokenMove(NamedTuple):
    """The last so many of a rank's own tokens that have not moved yet go behind those of another."""

    source: int
    target: int
    num_tokens: int


def even_shares(tokens: Sequence[int]) -> list[int]:
    """What every rank has afterwards: the mean, or one more on those that have the most now, which moves the least."""
    least, more = divmod(sum(tokens), len(tokens))
    longest = sorted(range(len(tokens)), key=lambda rank: (-tokens[rank], rank))[:more]
    return [least + (rank in longest) for rank in range(len(tokens))]


def least_moved(tokens: Sequence[int]) -> int:
    """Tokens that have to move in any scheme after which ranks differ by one at most: all surpluses."""
    return sum(max(0, own - share) for own, share in zip(tokens, even_shares(tokens), strict=True))


def remapped(tokens: Sequence[int], ranks_of_node: int) -> list[TokenMove]:
    """Moves that give every rank its even share, those within nodes first: as few between nodes as there can be.

    Raises PlanError where nodes do not divide the ranks.
    """
    if not tokens or ranks_of_node < 1 or len(tokens) % ranks_of_node:
        raise PlanError(
            f"tokens of {len(tokens)} ranks, {ranks_of_node} in a node",
            allowed="whole nodes of ranks, one at least",
        )
    left = [own - share for own, share in zip(tokens, even_shares(tokens), strict=True)]
    moves: list[TokenMove] = []
    for first in range(0, len(tokens), ranks_of_node):
        moves += _settled(left, range(first, first + ranks_of_node))
    return moves + _settled(left, range(len(tokens)))


def _settled(left: list[int], ranks: range) -> list[TokenMove]:
    """Moves among some ranks until none of them has too many, or none too few; `left` is what remains."""
    moves = []
    over, under = [r for r in ranks if left[r] > 0], [r for r in ranks if left[r] < 0]
    while over and under:
        source, target = over[-1], under[-1]
        num_tokens = min(left[source], -left[target])
        moves.append(TokenMove(source, target, num_tokens))
        left[source] -= num_tokens
        left[target] += num_tokens
        if not left[source]:
            over.pop()
        if not left[target]:
            under.pop()
    return moves


def tokens_after(tokens: Sequence[int], moves: Sequence[TokenMove]) -> list[int]:
    """Tokens of every rank behind the moves."""
    found = list(tokens)
    for move in moves:
        found[move.source] -= move.num_tokens
        found[move.target] += move.num_tokens
    return found


class TokenPlace(NamedTuple):
    """Where a token is before the moves: the rank, and its place there."""

    rank: int
    place: int


def places_after(tokens: Sequence[int], moves: Sequence[TokenMove]) -> list[list[TokenPlace]]:
    """Of every rank, in their order behind the moves, where its tokens were: own ones first, then those that came."""
    kept = [[TokenPlace(rank, place) for place in range(count)] for rank, count in enumerate(tokens)]
    came: list[list[TokenPlace]] = [[] for _ in tokens]
    for move in moves:
        own = kept[move.source]
        came[move.target] += own[len(own) - move.num_tokens :]
        del own[len(own) - move.num_tokens :]
    return [own + others for own, others in zip(kept, came, strict=True)]


def places_back(after: Sequence[Sequence[TokenPlace]]) -> list[list[TokenPlace]]:
    """The inverse: of every rank, in its first order, where its tokens are behind the moves."""
    found = sorted(
        (before, TokenPlace(rank, place))
        for rank, own in enumerate(after)
        for place, before in enumerate(own)
    )
    by_rank = {rank: [now for _, now in own] for rank, own in groupby(found, key=lambda pair: pair[0].rank)}
    return [by_rank.get(rank, []) for rank in range(len(after))]
