"""A token's row sent once to each target that has any of its experts, and what comes back from there summed (DeepEP's way).

A row has its token's gates behind the hidden units, so that the target can sum by gate what its experts return, and gates
get their gradients with the row's. Which of a token's K choices are at a target, and which expert there each is, goes
beside it. What comes back is one row for each that was sent: a term of the token's sum.

Shapes: T tokens, K experts a token, P targets, N rows (of a token as many as targets have any of its experts), E hidden
size, F = E + K numbers of a row with its gates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.expert.dispatch import dispatch

NOT_THERE = -1  # of a choice: its expert is elsewhere, or it is not kept


class RowsOnce(NamedTuple):
    """Rows sorted by target, each target's by token.

    ``choices_NK``: the number of each expert among those of the row's target, or `NOT_THERE`. ``places_TK``: the row by
    which a choice goes, at the first of a token's choices there; -1 at all others. ``counts_P1``: rows for every target.
    """

    wide_NF: Tensor
    choices_NK: Tensor
    places_TK: Tensor
    counts_P1: Tensor


def sent_once(wide_TF: Tensor, choices_TK: Tensor, num_targets: int, num_experts_each: int) -> RowsOnce:
    """Rows of all tokens for targets with so many experts each; a choice that is `NOT_THERE` goes nowhere."""
    is_sent_TK = choices_TK != NOT_THERE
    target_TK = torch.where(is_sent_TK, choices_TK // num_experts_each, num_targets)
    first_TK = is_sent_TK & ~_is_repeated(target_TK)
    wide_NF, order_N, counts_P = dispatch(wide_TF, target_TK, num_targets, first_TK)
    places_TK = torch.full_like(choices_TK, -1)
    places_TK.view(-1)[order_N] = torch.arange(len(order_N), device=order_N.device)
    token_N, num_chosen = order_N // choices_TK.shape[1], choices_TK.shape[1]
    is_here_NK = target_TK[token_N] == target_TK.reshape(-1)[order_N].unsqueeze(1)
    choices_NK = torch.where(is_here_NK, choices_TK[token_N] % num_experts_each, NOT_THERE)
    return RowsOnce(wide_NF, choices_NK.view(-1, num_chosen), places_TK, counts_P.unsqueeze(1))


def returned_once(returned_NE: Tensor, places_TK: Tensor) -> Tensor:
    """The sums [T, E] of a token's rows, in the order of its choices; zero where it has none."""
    return _ReturnedOnce.apply(returned_NE, places_TK)  # type: ignore[no-untyped-call, no-any-return]


def _is_repeated(target_TK: Tensor) -> Tensor:
    """Has an earlier choice of the same token the same target?"""
    same_TKK = target_TK.unsqueeze(2) == target_TK.unsqueeze(1)
    return same_TKK.tril(-1).any(2)


class _ReturnedOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, returned_NE: Tensor, places_TK: Tensor) -> Tensor:
        ctx.save_for_backward(places_TK)
        ctx.num_rows = len(returned_NE)
        total_TE = returned_NE.new_zeros(len(places_TK), returned_NE.shape[1])
        for place_T in places_TK.unbind(1):
            (token_M,) = (place_T >= 0).nonzero(as_tuple=True)
            total_TE[token_M] += returned_NE[place_T[token_M]]
        return total_TE

    @staticmethod
    def backward(ctx: Any, dy_TE: Tensor) -> tuple[Tensor, None]:
        (places_TK,) = ctx.saved_tensors
        token_M, choice_M = (places_TK >= 0).nonzero(as_tuple=True)
        token_N = torch.empty(ctx.num_rows, dtype=torch.int64, device=dy_TE.device)
        token_N[places_TK[token_M, choice_M]] = token_M
        return dy_TE.index_select(0, token_N), None
