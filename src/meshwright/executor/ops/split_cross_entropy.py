"""Cross entropy where every device has the rows of the head for its part of the vocabulary: both algorithms, no exchange.

Shapes: T tokens, E hidden size, R rows of the head on this device (padded ones at the end).

Of all devices, m the largest logit and s the sum of exp(logit - m): the loss of a token is log s + m - its target's
logit, the gradient of a logit exp(logit - m) / s, less one for the target. A device knows m and s of its rows only, so
its part of the gradient is scaled by exp(m_here - m) / s once they are known (Yeung et al. 2024, arXiv 2411.05288):
either before its product with the head (two barriers), or after it (one).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET

IGNORED = -1  # the place of a target in another device's rows


class PartialSoftmax(NamedTuple):
    """What a device knows of the softmax from its own rows.

    ``exponentials_TR``: exp(logit - maximum), 0 where a row is padding. ``maximum_T``, ``sum_T``: of its rows.
    ``target_T``: logit of the target, 0 where another device has it. ``place_T``: its row here, or IGNORED.
    ``weighted_TE``, ``chosen_TE``: with one barrier, exponentials times the head and the target's row of it.
    """

    exponentials_TR: Tensor
    maximum_T: Tensor
    sum_T: Tensor
    target_T: Tensor
    place_T: Tensor
    weighted_TE: Tensor | None = None
    chosen_TE: Tensor | None = None


class Normalizer(NamedTuple):
    """Of all rows of all devices: the maximum of a token's logits, the sum of their exponentials, the target's logit."""

    maximum_T: Tensor
    sum_T: Tensor
    target_T: Tensor

    def loss(self) -> Tensor:
        """Sum over the tokens of -log p(target), in nats."""
        return (self.sum_T.log() + self.maximum_T - self.target_T).sum()

    def scale_T(self, part: PartialSoftmax) -> Tensor:
        """What a device's exponentials are to be multiplied by; 0 where all its rows are padding."""
        return (part.maximum_T - self.maximum_T).exp() / self.sum_T


def partial_softmax(
    x_TE: Tensor, weight_RE: Tensor, targets_T: Tensor, first_row: int, num_rows: int, has_gradient: bool
) -> PartialSoftmax:
    """S: logits of the device's rows and their softmax among themselves, in float32 where the logits have 16 bits.

    Args:
        targets_T: tokens of the whole vocabulary, or IGNORED_TARGET.
        first_row, num_rows: which of it the device has; rows of `weight_RE` behind them are padding.
        has_gradient: also make both halves of the input's gradient (one barrier).
    """
    logits_TR = x_TE @ weight_RE.t()
    if logits_TR.dtype in (torch.bfloat16, torch.float16):
        logits_TR = logits_TR.float()
    is_padding_R = torch.arange(len(weight_RE), device=x_TE.device) >= num_rows
    logits_TR.masked_fill_(is_padding_R, -torch.inf)
    # a device of padding only has no maximum: the least finite number makes its exponentials and its scale 0
    maximum_T = logits_TR.amax(1).clamp_(min=torch.finfo(logits_TR.dtype).min)
    place_T = targets_T - first_row
    is_here_T = (place_T >= 0) & (place_T < num_rows)
    place_T = torch.where(is_here_T, place_T, IGNORED)
    taken_T = logits_TR.gather(1, place_T.clamp(min=0)[:, None])[:, 0]
    target_T = torch.where(is_here_T, taken_T, torch.zeros_like(taken_T))
    exponentials_TR = logits_TR.sub_(maximum_T[:, None]).exp_()
    sum_T = exponentials_TR.sum(1)
    is_left_out_T = targets_T == IGNORED_TARGET
    # over all devices: sum 1, maximum and target's logit 0, so the loss is 0, and so is every gradient
    exponentials_TR.masked_fill_(is_left_out_T[:, None], 0.0)
    maximum_T.masked_fill_(is_left_out_T, 0.0)
    sum_T.masked_fill_(is_left_out_T, 1.0 if first_row == 0 else 0.0)
    part = PartialSoftmax(exponentials_TR, maximum_T, sum_T, target_T, place_T)
    if not has_gradient:
        return part
    weighted_TE = exponentials_TR.to(weight_RE.dtype) @ weight_RE
    chosen_TE = weight_RE[place_T.clamp(min=0)] * is_here_T[:, None]
    return part._replace(weighted_TE=weighted_TE, chosen_TE=chosen_TE)


def logit_gradient(part: PartialSoftmax, normalizer: Normalizer, weight: float) -> Tensor:
    """Gradient of the loss, whose tokens weigh `weight` each, with respect to the device's logits: [T, R]."""
    gradient_TR = part.exponentials_TR * normalizer.scale_T(part)[:, None]
    is_here_T = part.place_T != IGNORED
    rows = torch.nonzero(is_here_T)[:, 0]
    gradient_TR[rows, part.place_T[rows]] -= 1.0
    return gradient_TR.mul_(weight)


def early_input_gradient(part: PartialSoftmax, normalizer: Normalizer, weight: float) -> Tensor:
    """One barrier: the device's part of the input's gradient from what S has made, [T, E]."""
    assert part.weighted_TE is not None and part.chosen_TE is not None, "S was told to make them"
    scale_T = normalizer.scale_T(part).to(part.weighted_TE.dtype)
    return (part.weighted_TE * scale_T[:, None] - part.chosen_TE) * weight
