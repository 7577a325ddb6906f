"""Losses of a router, whose gradients join those of its logits behind the gates: balance by sequences, and z.

Shapes: T tokens, X experts, K experts a token, B sequences, S tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.expert.routing import HALF_DTYPES
from meshwright.specs.training.router_losses import RouterLosses


@dataclass
class RouterLoss:
    """Of one block's router on one device. ``tokens_per_step``: of all devices; ``total``: what was found in this iteration,
    a share of the step's loss."""

    losses: RouterLosses
    sequence_length: int
    tokens_per_step: int
    total: Tensor | None = None

    def attached(
        self, gates_TK: Tensor, logits_TX: Tensor, experts_TK: Tensor, is_sigmoid: bool, num_copies: float
    ) -> Tensor:
        """The gates, whose backward also runs that of the losses. ``num_copies``: devices that have these very tokens, of
        which each has an equal share."""
        if not torch.is_grad_enabled():  # nothing is learned, or it is computed once more
            return gates_TK
        logits_TX = logits_TX.to(torch.float32) if logits_TX.dtype in HALF_DTYPES else logits_TX
        loss = logits_TX.new_zeros(())
        if self.losses.z:
            loss = loss + self.losses.z * z_loss(logits_TX)
        if self.losses.balance:
            scores_TX = logits_TX.sigmoid() if is_sigmoid else logits_TX.softmax(1)
            shares_TX = scores_TX / scores_TX.sum(1, keepdim=True)
            loss = loss + self.losses.balance * balance_loss(shares_TX, experts_TK, self.sequence_length)
        loss = loss / (self.tokens_per_step * num_copies)
        found = loss.detach()
        self.total = found if self.total is None else self.total + found
        return _Attached.apply(gates_TK, loss)  # type: ignore[no-untyped-call, no-any-return]


def z_loss(logits_TX: Tensor) -> Tensor:
    """Sum over tokens of log(sum exp(logits))^2."""
    return logits_TX.logsumexp(1).square().sum()


def balance_loss(shares_TX: Tensor, experts_TK: Tensor, sequence_length: int) -> Tensor:
    """Sum over tokens of the balance of their sequence, 1 where its experts are alike. Counts have no gradient."""
    num_experts, per_token = shares_TX.shape[1], experts_TK.shape[1]
    chosen_TX = F.one_hot(experts_TK, num_experts).sum(1).to(shares_TX.dtype)
    counts_BX = chosen_TX.view(-1, sequence_length, num_experts).sum(1)
    sums_BX = shares_TX.view(-1, sequence_length, num_experts).sum(1)
    return (counts_BX * sums_BX).sum() * num_experts / (per_token * sequence_length)


class _Attached(torch.autograd.Function):
    """A value beside a loss that is a term of the whole one."""

    @staticmethod
    def forward(ctx: Any, gates_TK: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return gates_TK.view_as(gates_TK)

    @staticmethod
    def backward(ctx: Any, dgates_TK: Tensor) -> tuple[Tensor, Tensor]:
        return dgates_TK, torch.ones((), dtype=ctx.dtype, device=dgates_TK.device)
