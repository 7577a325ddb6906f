"""Handlers of a linear layer between two remappings.

`options` of the job: `tokens` of every rank behind attention, and `moves` (source, target, tokens).

Shapes: T tokens of a rank, M of a move, E width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.systems.sequence.zeppelin.remap import TokenMove
from meshwright.systems.sequence.zeppelin.remapped_rows import ATTEND, CUT, CUT_BACK, LINEAR, RESTORE

WIDTH = 8


def attended(rank: int, num_tokens: int) -> Tensor:
    """x_TE of a rank."""
    generator = keyed_generator(random_key("attended", rank))
    return torch.randn(num_tokens, WIDTH, generator=generator, dtype=torch.float64)


def linear(x_TE: Tensor) -> Tensor:
    """What a layer makes of each token by itself."""
    weight_EE = torch.randn(
        WIDTH, WIDTH, generator=keyed_generator(random_key("linear")), dtype=torch.float64
    )
    return torch.stack([weight_EE @ x_E for x_E in x_TE]) if len(x_TE) else x_TE


def _moves(context: Any) -> list[TokenMove]:
    return [TokenMove(*move) for move in context.options["moves"]]


def make_tokens(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What attention leaves a rank with."""
    return (attended(context.rank, context.options["tokens"][context.rank]),)


def cut_tokens(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """x_ME of a move: the last tokens that no earlier one has taken."""
    moves, x_TE = _moves(context), inputs[0]
    end = len(x_TE) - sum(one.num_tokens for one in moves[: row.part] if one.source == context.rank)
    return (x_TE[end - moves[row.part].num_tokens : end].clone(),)


def linear_of_even(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The layer's outputs of the tokens that stay, and behind them of those that came."""
    x_TE, *came = inputs
    sent = sum(one.num_tokens for one in _moves(context) if one.source == context.rank)
    return (linear(torch.cat([x_TE[: len(x_TE) - sent], *came])),)


def cut_outputs(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Outputs of a move that came: as many as those that came later are in front of the end."""
    moves, y_TE = _moves(context), inputs[0]
    end = len(y_TE) - sum(one.num_tokens for one in moves[row.part + 1 :] if one.target == context.rank)
    return (y_TE[end - moves[row.part].num_tokens : end].clone(),)


def own_outputs(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Outputs in the order in which attention left the tokens: the first move took the last ones."""
    y_TE, *back = inputs
    came = sum(one.num_tokens for one in _moves(context) if one.target == context.rank)
    return (torch.cat([y_TE[: len(y_TE) - came], *reversed(back)]),)


HANDLERS: Handlers = {
    ATTEND.name: make_tokens,
    CUT.name: cut_tokens,
    LINEAR.name: linear_of_even,
    CUT_BACK.name: cut_outputs,
    RESTORE.name: own_outputs,
}
