"""What relays send beside attention, as exchanges of a composed price: what travels, and what comes back.

What travels goes to every other device once, as a gather brings it. What returns goes from every device to every other one,
as in an all-to-all. Here one stands behind the other, as on devices with one way out for both; in rows each has a stream.

    token ring           forward    (P - 1) q one way, (P - 1) (q + q / d * sum / element) the other way
                         backward   (P - 1) (2 q + 2 q / d * sum / element), and (P - 1) q * sum / element
    ring self-attention  forward    2 (P - 1) q rho
                         backward   2 (P - 1) q rho, and 2 (P - 1) q rho scattered (all-reduced, as published: twice that)

q: bytes of a device's queries, d: numbers of a head, rho: key-value heads per query head; a sum is in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SUM_BYTES = 4  # of what a relay adds up: float32
SCORE_KERNEL = "grouped_matmul"  # of whole score matrices


class SentRows(NamedTuple):
    """Of one device: how many tokens, bytes of a number, and numbers of a token: queries, keys and values, results, heads."""

    num_tokens: int
    element_bytes: int
    query: int
    block: int
    attended: int
    heads: int


def token_ring_exchanges(rows: SentRows, degree: int, is_backward: bool) -> Iterator[tuple[str, float, str]]:
    """Algorithm, bytes, and kernels that it runs beside."""
    size, wide = rows.element_bytes, max(rows.element_bytes, SUM_BYTES)
    sums, times = wide * rows.heads, degree * rows.num_tokens
    if is_backward:
        yield "all_gather", float(times * (size * (rows.query + rows.attended) + 2 * sums)), "attention"
        yield "all_to_all", float(times * wide * rows.query), "attention"
    else:
        yield "all_gather", float(times * size * rows.query), "attention"
        yield "all_to_all", float(times * (size * rows.attended + sums)), "attention"


def full_score_exchanges(rows: SentRows, degree: int, is_backward: bool) -> Iterator[tuple[str, float, str]]:
    """Of ring self-attention: the terms of gradients are scattered behind it, beside nothing."""
    whole = float(degree * rows.num_tokens * rows.element_bytes * rows.block)
    yield "all_gather", whole, SCORE_KERNEL
    if is_backward:
        yield "reduce_scatter", whole, ""
