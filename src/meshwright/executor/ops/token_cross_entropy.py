"""Token-weighted loss: the sum of the tokens' cross-entropies times a weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED_TARGET = -100  # of a token that the loss leaves out: torch's own number for it


def token_cross_entropy(logits_BSV: Tensor, targets_BS: Tensor, weight: float) -> Tensor:
    """Sum over tokens of -log p(target) in nats, times `weight`; a scalar. Tokens with IGNORED_TARGET are left out.

    With weight = 1 / (tokens of the whole batch) the losses, and so the gradients, of all microbatches of
    all ranks add up to those of the mean over the batch, however unequal the microbatches are.
    16-bit logits are summed in float32.
    """
    logits_TV = logits_BSV.reshape(-1, logits_BSV.shape[-1])
    if logits_TV.dtype in (torch.bfloat16, torch.float16):
        logits_TV = logits_TV.float()
    return F.cross_entropy(logits_TV, targets_BS.reshape(-1), ignore_index=IGNORED_TARGET, reduction="sum") * weight
