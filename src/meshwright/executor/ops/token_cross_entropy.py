"""Token-weighted loss: the sum of the tokens' cross-entropies times a weight.

Shapes: B samples, S tokens of each, T tokens of all, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED_TARGET = -100  # of a token that the loss leaves out: torch's own number for it
# Logits become log-probabilities in this many parts: each needs its own memory once more while it does.
NUM_PARTS = 8
_LOW_PRECISION = (torch.bfloat16, torch.float16)


def token_cross_entropy(
    logits_BSV: Tensor, targets_BS: Tensor, weight: float, *, is_consumed: bool = False
) -> Tensor:
    """Sum over tokens of -log p(target) in nats, times `weight`; a scalar. Tokens with IGNORED_TARGET are left out.

    With weight = 1 / (tokens of the whole batch) the losses, and so the gradients, of all microbatches of
    all ranks add up to those of the mean over the batch, however unequal the microbatches are.
    16-bit logits are summed in float32.

    `is_consumed`: nothing else reads the logits, and one backward is run: log-probabilities, and then the logits'
    gradient, are written over them, so that no memory is needed beside.
    """
    logits_TV, targets_T = logits_BSV.reshape(-1, logits_BSV.shape[-1]), targets_BS.reshape(-1)
    if logits_TV.dtype in _LOW_PRECISION:
        logits_TV = logits_TV.float()
    if is_consumed:
        return _ConsumingLoss.apply(logits_TV, targets_T, weight)  # type: ignore[no-untyped-call, no-any-return]
    return F.cross_entropy(logits_TV, targets_T, ignore_index=IGNORED_TARGET, reduction="sum") * weight


class _ConsumingLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor, weight: float) -> Tensor:
        log_p_TV = logits_TV.detach()
        for part in log_p_TV.chunk(NUM_PARTS):
            part.copy_(torch.log_softmax(part, -1))
        ctx.save_for_backward(log_p_TV, targets_T)
        ctx.weight = weight
        return F.nll_loss(log_p_TV, targets_T, ignore_index=IGNORED_TARGET, reduction="sum") * weight

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None]:
        log_p_TV, targets_T = ctx.saved_tensors
        scale, is_left_out_T = dloss * ctx.weight, targets_T == IGNORED_TARGET
        gradient_TV = log_p_TV.exp_().mul_(scale).masked_fill_(is_left_out_T[:, None], 0.0)
        at_target_T = torch.where(is_left_out_T, 0.0, -scale)
        gradient_TV.scatter_add_(1, targets_T.clamp(min=0)[:, None], at_target_T[:, None])
        return gradient_TV, None, None
