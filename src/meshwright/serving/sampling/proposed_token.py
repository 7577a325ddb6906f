"""A proposed token is taken or replaced so that what comes out is distributed as if nobody had proposed anything.

Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318): with p the model's own distribution
and q the one that a token d was drawn from, d is taken with probability min(1, p(d) / q(d)); else a token is drawn from
max(p - q, 0), normed. Then it is distributed by p, whatever q is. (One that is drawn from p itself on rejection is not.)

Shapes: V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.serving.sampling.inverse_draw import drawn_of_few
from meshwright.serving.sampling.kept_tokens import Kept


class ProposedToken(NamedTuple):
    """A token, and what it was drawn from: tokens that could have come, and weights in proportion to their probabilities."""

    token_id: int
    drawn_from: Kept


def taken_or_replaced(target: Kept, proposed: ProposedToken, accepting: float, drawing: float) -> int:
    """The proposed token, or the one that comes in its place.

    Args:
        target: tokens that may come, and weights in proportion to p.
        proposed: by q.
        accepting, drawing: uniform numbers within [0, 1), independent of each other and of the proposal.
    """
    ids, weights = target
    shares = weights / weights.sum()
    q_ids, q_weights = proposed.drawn_from
    q_shares = np.zeros(1 + max(int(ids.max()), int(q_ids.max()), proposed.token_id))
    q_shares[q_ids] = q_weights / q_weights.sum()
    is_it = ids == proposed.token_id
    if accepting * q_shares[proposed.token_id] < float(shares[is_it].sum()):
        return proposed.token_id
    left = np.maximum(shares - q_shares[ids], 0.0)
    if not left.any():  # p is q, but for rounding
        return drawn_of_few(ids, weights, drawing)
    return drawn_of_few(ids, left, drawing)
