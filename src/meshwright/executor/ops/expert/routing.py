"""Routing: which experts a token goes to, and by what their results are multiplied.

Shapes: T tokens, E hidden size, X experts, G groups of experts, K experts a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.executor.ops.linear import linear
from meshwright.specs.model.block import Routing

LEAST_SUM = (
    1e-20  # added to a sum of gates before it divides, as published code does: sigmoids may all be zero
)
CORRECTED_BEST = 2  # of a group whose scores are corrected so many experts count together (DeepSeek-V3)
HALF_DTYPES = (torch.bfloat16, torch.float16)


def route(
    hidden_TE: Tensor,
    router_weight_XE: Tensor,
    num_per_token: int,
    routing: Routing,
    correction_X: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gates [T, K] and numbers of experts [T, K] of every token, the best expert first.

    Gates have the dtype of the hidden state; scores of 16-bit ones are made in float32. Gradients flow through the gates, and
    the router's weight gradient is split as that of any linear layer; a choice has none.
    """
    return gates_of(
        linear(hidden_TE, router_weight_XE), num_per_token, routing, correction_X, hidden_TE.dtype
    )


def gates_of(
    logits_TX: Tensor, num_per_token: int, routing: Routing, correction_X: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What `route` gives, from the router's logits; gates in this dtype."""
    scores_TX = _scores(logits_TX, routing)
    experts_TK = chosen_experts(scores_TX.detach(), num_per_token, routing, correction_X)
    gates_TK = scores_TX.gather(1, experts_TK)
    if routing.has_unit_sum:
        gates_TK = gates_TK / (gates_TK.sum(1, keepdim=True) + LEAST_SUM)
    if routing.gate_scale != 1.0:
        gates_TK = gates_TK * routing.gate_scale
    return gates_TK.to(dtype), experts_TK


def _scores(logits_TX: Tensor, routing: Routing) -> Tensor:
    wide = torch.float32 if logits_TX.dtype in HALF_DTYPES else logits_TX.dtype
    if routing.scores == "sigmoid":
        return logits_TX.to(wide).sigmoid()
    return logits_TX.softmax(1, dtype=wide)


def chosen_experts(
    scores_TX: Tensor, num_per_token: int, routing: Routing, correction_X: Tensor | None = None
) -> Tensor:
    """Numbers [T, K] of the best experts of every token, the best first."""
    choice_TX = scores_TX if correction_X is None else scores_TX + correction_X
    if routing.num_groups_per_token < routing.num_groups:
        choice_TX = choice_TX.masked_fill(~_open_experts(choice_TX, routing), -torch.inf)
    return choice_TX.topk(num_per_token, dim=1).indices


def _open_experts(choice_TX: Tensor, routing: Routing) -> Tensor:
    """True for the experts of the groups a token may go to."""
    grouped_TGx = choice_TX.view(len(choice_TX), routing.num_groups, -1)
    best = CORRECTED_BEST if routing.has_correction else 1
    groups_TG = grouped_TGx.topk(best, dim=2).values.sum(2)
    chosen_TG = groups_TG.topk(routing.num_groups_per_token, dim=1).indices
    is_open_TG = torch.zeros_like(groups_TG, dtype=torch.bool).scatter_(1, chosen_TG, True)
    return is_open_TG[:, :, None].expand_as(grouped_TGx).flatten(1)
