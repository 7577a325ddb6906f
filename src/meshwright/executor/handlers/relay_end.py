"""What stands behind the steps of a relay: what its segment makes and keeps, or the gradients of what it read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.executor.handlers import relay_handler, score_handler
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Row
from meshwright.stage.relay.rounds import RING, SCORES, TOKEN_RING, WEIGHTED, Rounds

End = Callable[[Context, Row, Sequence[Any]], Sequence[Any]]
# By the rounds of the relay, forward and backward.
ENDS: dict[Rounds, tuple[End, End]] = {
    RING: (relay_handler.finished, relay_handler.gradients),
    TOKEN_RING: (relay_handler.finished, relay_handler.gradients),
    SCORES: (score_handler.probabilities, score_handler.gradients_of_scores),
    WEIGHTED: (score_handler.weighted, score_handler.gradients_of_weighted),
}


def finished(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What the segment makes, and what its backward keeps, where the row keeps anything."""
    return _ends(context, row)[0](context, row, inputs)


def gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The gradients of what the segment read."""
    return _ends(context, row)[1](context, row, inputs)


def _ends(context: Context, row: Row) -> tuple[End, End]:
    relay = context.training.segments[row.stage].segment.relay
    return ENDS[relay.rounds]
