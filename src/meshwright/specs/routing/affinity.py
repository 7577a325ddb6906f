"""Affinity between layers: how much a token's expert in one layer says about its expert in the next.

The mutual information of both, in bits, of counts M[a, b] (ExFlow, arXiv 2401.08383, draws the conditional shares
M[a, b] / sum_b M[a, b]). Counted pairs of N tokens show about (E - 1)^2 / (2 N ln 2) bits where there is none (Miller 1955),
which is taken off.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshwright.specs.routing.routing_trace import RoutingTrace


class LayerAffinity(NamedTuple):
    """Of a layer to the next one that has experts.

    ``bits``: mutual information, what so few tokens show by chance taken off, at least 0. ``followed``: share of rows that go
    on to the expert which most rows of their own go on to; ``by_chance`` the same of somebody who knows the next layer's
    loads only.
    """

    layer: int
    bits: float
    followed: float
    by_chance: float


def affinities(trace: RoutingTrace) -> list[LayerAffinity]:
    """Of every two neighbouring layers of a trace."""
    found = []
    for layer, counts in zip(trace.layers, trace.transitions, strict=False):
        total = counts.sum()
        shares, rows, columns = counts / total, counts.sum(1) / total, counts.sum(0) / total
        expected = rows[:, None] * columns[None, :]
        seen = shares > 0
        bits = float((shares[seen] * np.log2(shares[seen] / expected[seen])).sum())
        num_free = (np.count_nonzero(rows) - 1) * (np.count_nonzero(columns) - 1)
        chance = num_free / (2 * trace.num_tokens * math.log(2))
        found.append(
            LayerAffinity(
                layer, max(0.0, bits - chance), float(counts.max(1).sum() / total), float(columns.max())
            )
        )
    return found
