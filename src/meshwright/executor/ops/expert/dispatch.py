"""Dispatch and combine: rows of tokens sorted by expert, and what experts return added up again, every token's in one order.

Choices that are not kept have no row, and add nothing. Sums run over a token's experts in the order of `experts_TK`, forward
and backward, and every gradient is a gather: results repeat bitwise, on any device.

Shapes: T tokens, E hidden size, X experts, K experts a token, N = T K rows (those that are kept), P devices that sent rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def dispatch(
    hidden_TE: Tensor, experts_TK: Tensor, num_experts: int, kept_TK: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Every token once for each of its experts: rows [N, E] sorted by expert, and in the order of tokens for each of them.

    Also `order_N`, the place of every row in `experts_TK` read row by row, and `counts_X`, the rows of every expert; one may
    have none, or all. `kept_TK`: choices that have a row; None: all.
    """
    flat_N = experts_TK.reshape(-1)
    order_N = flat_N.argsort(stable=True)
    if kept_TK is not None:
        order_N = order_N[kept_TK.reshape(-1)[order_N]]
        flat_N = flat_N[order_N]
    counts_X = torch.bincount(flat_N, minlength=num_experts)
    return _Dispatch.apply(hidden_TE, order_N, experts_TK.shape[1]), order_N, counts_X  # type: ignore[no-untyped-call]


def combine(returned_NE: Tensor, gates_TK: Tensor, order_N: Tensor) -> Tensor:
    """The sum over a token's experts of gate times result: [T, E], of rows in the order of `dispatch`."""
    return _Combine.apply(returned_NE, gates_TK, order_N)  # type: ignore[no-untyped-call, no-any-return]


def by_expert(counts_PX: Tensor) -> Tensor:
    """Rows that came from several devices, each device's sorted by expert: their places in the order of experts, [N].

    ``rows[by_expert(counts_PX)]`` has an expert's rows together, those of the first device first.
    """
    starts_PX = (counts_PX.reshape(-1).cumsum(0) - counts_PX.reshape(-1)).view_as(counts_PX)
    counts_M, starts_M = counts_PX.t().reshape(-1), starts_PX.t().reshape(-1)
    first_M = counts_M.cumsum(0) - counts_M
    places_N = torch.arange(int(counts_M.sum()), device=counts_PX.device)
    return places_N + torch.repeat_interleave(starts_M - first_M, counts_M)


def reordered(rows_NE: Tensor, order_N: Tensor) -> Tensor:
    """``rows_NE[order_N]`` of a permutation, whose backward is the gather of its inverse."""
    return _Reordered.apply(rows_NE, order_N)  # type: ignore[no-untyped-call, no-any-return]


def inverse(order_N: Tensor) -> Tensor:
    """The permutation that undoes one."""
    places_N = torch.empty_like(order_N)
    places_N[order_N] = torch.arange(len(order_N), device=order_N.device)
    return places_N


def _placed(rows_NE: Tensor, order_N: Tensor, num_places: int) -> Tensor:
    """Rows where `order_N` says, of so many places; zeros where there is none."""
    if len(order_N) == num_places:
        return rows_NE.index_select(0, inverse(order_N))
    return rows_NE.new_zeros(num_places, *rows_NE.shape[1:]).index_copy_(0, order_N, rows_NE)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TE: Tensor, order_N: Tensor, num_per_token: int) -> Tensor:
        ctx.save_for_backward(order_N)
        ctx.num_per_token, ctx.num_tokens = num_per_token, len(hidden_TE)
        return hidden_TE.index_select(0, order_N // num_per_token)

    @staticmethod
    def backward(ctx: Any, dtokens_NE: Tensor) -> tuple[Tensor, None, None]:
        (order_N,) = ctx.saved_tensors
        each_NE = _placed(dtokens_NE, order_N, ctx.num_tokens * ctx.num_per_token)
        each_TKE = each_NE.view(ctx.num_tokens, ctx.num_per_token, dtokens_NE.shape[1])
        return _sum_of(each_TKE), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, returned_NE: Tensor, gates_TK: Tensor, order_N: Tensor) -> Tensor:
        ctx.save_for_backward(returned_NE, gates_TK, order_N)
        each_NE = _placed(returned_NE, order_N, gates_TK.numel())
        each_TKE = each_NE.view(*gates_TK.shape, returned_NE.shape[1])
        return _sum_of(each_TKE.mul_(gates_TK[:, :, None]))

    @staticmethod
    def backward(ctx: Any, dy_TE: Tensor) -> tuple[Tensor, Tensor, None]:
        returned_NE, gates_TK, order_N = ctx.saved_tensors
        dy_NE = dy_TE.index_select(0, order_N // gates_TK.shape[1])
        dgates_N = _placed((returned_NE * dy_NE).sum(1), order_N, gates_TK.numel())
        dreturned_NE = dy_NE.mul_(gates_TK.reshape(-1).index_select(0, order_N)[:, None])
        return dreturned_NE, dgates_N.view_as(gates_TK), None


class _Reordered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_NE: Tensor, order_N: Tensor) -> Tensor:
        ctx.save_for_backward(order_N)
        return rows_NE.index_select(0, order_N)

    @staticmethod
    def backward(ctx: Any, dy_NE: Tensor) -> tuple[Tensor, None]:
        (order_N,) = ctx.saved_tensors
        return dy_NE.index_select(0, inverse(order_N)), None


def _sum_of(each_TKE: Tensor) -> Tensor:
    """Over K, first to last."""
    total_TE = each_TKE[:, 0].clone()
    for place in range(1, each_TKE.shape[1]):
        total_TE += each_TKE[:, place]
    return total_TE
