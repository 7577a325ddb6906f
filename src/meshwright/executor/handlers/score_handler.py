"""Handlers of ring self-attention: scores filled as keys come around, and behind their softmax what values give.

Shapes: P devices along cp, B samples, s tokens of this device, S of a sequence, H query and K key-value heads, W numbers of a
head. Keys and values are [B, s, K, W].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.handlers.relay_handler import part_and_mask
from meshwright.executor.ops.attention.tile_kernel import wide_dtype
from meshwright.executor.ops.relay.full_scores import FullScores, softmax, softmax_backward
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.ir.core_vocabulary import REMADE, SAVED


def score(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: scores of the keys that are here."""
    query, keys, *before = inputs
    own, rank = _scores(context, row)
    scores = before[0] if before else own.empty_scores(query)
    own.score(query, keys, scores, rank)
    return (scores,)


def probabilities(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps: their softmax; queries are kept."""
    query, scores = inputs[:2]
    return _made_or_kept(row, softmax(scores, query.dtype), query)


def weigh(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: what the values that are here add."""
    found, values, *before = inputs
    own, rank = _scores(context, row)
    batch, num_heads, num_rows, _ = found.shape
    shape = (batch, num_rows, num_heads, values.shape[-1])
    total = before[0] if before else values.new_zeros(shape, dtype=wide_dtype(values.dtype))
    own.weigh(found, values, total, rank)
    return (total,)


def weighted(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps: the output [B, s, H W]; nothing is kept, probabilities are a value of the program."""
    found, total = inputs[:2]
    return _made_or_kept(row, total.flatten(2).to(found.dtype), None)


def weigh_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: the gradient of the probabilities of the values that are here, and this device's term of that of values."""
    found, output_gradient, values, *before = inputs
    own, rank = _scores(context, row)
    total = found.new_empty(found.shape, dtype=wide_dtype(found.dtype)) if not before else before[0]
    terms = _terms(before, values, own.part.degree)
    given = output_gradient.reshape(*output_gradient.shape[:2], found.shape[1], -1)
    _of_rank(terms, rank, values).copy_(own.weigh_backward(found, given, values, total, rank))
    return total, terms


def to_scores(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """In front of the steps of scores: the gradient behind the softmax, in front of it."""
    return (softmax_backward(*inputs),)


def score_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: the share of the keys that are here in the gradient of queries, and this device's term of that of keys."""
    query, pairs, keys, *before = inputs
    own, rank = _scores(context, row)
    total = query.new_zeros(query.shape, dtype=wide_dtype(query.dtype)) if not before else before[0]
    terms = _terms(before, keys, own.part.degree)
    _of_rank(terms, rank, keys).copy_(own.score_backward(query, pairs, keys, total, rank))
    return total, terms


def gradients_of_scores(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps of the backward: gradients of queries, and of keys, whose terms were summed."""
    return tuple(x.to(context.dtype) for x in inputs[1:3])


def gradients_of_weighted(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps of the backward: gradients of probabilities, and of values."""
    return tuple(x.to(context.dtype) for x in inputs[1:3])


def _scores(context: Context, row: Row) -> tuple[FullScores, int]:
    """Of this device's tokens; and the rank whose keys or values a step has."""
    part, mask = part_and_mask(context, row)
    return FullScores(part, mask), part.source(row.part % part.degree).rank


def _made_or_kept(row: Row, made: Tensor, kept: object) -> Sequence[Any]:
    return [kept if names and names[0].kind in (SAVED.kind, REMADE.name) else made for names in row.writes]


def _terms(before: Sequence[Any], keys: Tensor, degree: int) -> Tensor:
    """Room for the gradients of the keys of all ranks, one behind the other: [P B, s, K, W]."""
    return before[1] if before else keys.new_empty((degree * len(keys), *keys.shape[1:]))


def _of_rank(terms: Tensor, rank: int, keys: Tensor) -> Tensor:
    return terms[rank * len(keys) : (rank + 1) * len(keys)]


HANDLERS: Handlers = {
    "SCORE": score,
    "SCORE_AGAIN": score,
    "WEIGH": weigh,
    "WEIGH_AGAIN": weigh,
    "WEIGH_BACKWARD": weigh_backward,
    "SOFTMAX_BACKWARD": to_scores,
    "SCORE_BACKWARD": score_backward,
}
