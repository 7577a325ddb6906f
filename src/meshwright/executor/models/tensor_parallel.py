"""Tensor parallelism of a decoder: its tables, and its loss, on one device of a group; matrices are smaller ones.

What the devices exchange are rows of the program (`stage.chain`): no module here waits for another device.

Shapes: B samples, S tokens, E hidden size, V rows of the vocabulary here, T tokens of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.ops.embedding import SplitEmbedding
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deliver, registered_queue
from meshwright.executor.team.rank_team import RankTeam


@dataclass(frozen=True, eq=False)
class TensorParallel:
    """This device's place in its group. `divides_sequence`: the residual stream is divided by tokens."""

    shard: TensorShard
    team: RankTeam
    divides_sequence: bool = False

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many equal parts of the tokens the residual stream has here."""
        return (self.team.number, self.team.degree) if self.divides_sequence else (0, 1)


class VocabularyEmbedding(SplitEmbedding):
    """This device's rows of the embedding: tokens_BS -> a term of a sum over the devices, [B, S, E]."""

    def __init__(self, num_rows: int, width: int, parallel: TensorParallel) -> None:
        super().__init__(num_rows, width)
        self.parallel = parallel

    def forward(self, input: Tensor) -> Tensor:
        """Zero for tokens of other devices' rows."""
        queue = registered_queue(self.weight)
        return _Lookup.apply(input, self.weight, self.parallel.shard, queue)  # type: ignore[no-untyped-call, no-any-return]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tokens_BS: Tensor, weight_VE: Tensor, shard: TensorShard, queue: WeightGradientQueue | None
    ) -> Tensor:
        is_here_BS, place_BS = _places(tokens_BS, shard)
        ctx.save_for_backward(is_here_BS, place_BS)
        ctx.weight_VE, ctx.queue = weight_VE, queue
        return F.embedding(place_BS, weight_VE) * is_here_BS[..., None]

    @staticmethod
    def backward(ctx: Any, dy_BSE: Tensor) -> tuple[None, None, None, None]:
        is_here_BS, place_BS = ctx.saved_tensors
        deliver(ctx.queue, _accumulate_lookup, is_here_BS, place_BS, dy_BSE, ctx.weight_VE)
        return None, None, None, None


def _accumulate_lookup(is_here_BS: Tensor, place_BS: Tensor, dy_BSE: Tensor, weight_VE: Tensor) -> None:
    if weight_VE.grad is None:
        weight_VE.grad = torch.zeros_like(weight_VE)
    weight_VE.grad.index_add_(0, place_BS[is_here_BS], dy_BSE[is_here_BS])


def _places(tokens: Tensor, shard: TensorShard) -> tuple[Tensor, Tensor]:
    """Which tokens are of this device's rows, and which rows (0 for others)."""
    low, high = shard.rows(shard.model.vocabulary_size)
    is_here = (tokens >= low) & (tokens < high)
    return is_here, torch.where(is_here, tokens - low, 0)


def largest_logits(logits_BSV: Tensor, shard: TensorShard) -> Tensor:
    """Of every token the largest logit here, at least in float32: [T]. Rows of padding are overwritten by -inf."""
    low, high = shard.rows(shard.model.vocabulary_size)
    logits_TV = logits_BSV.detach().view(-1, logits_BSV.shape[-1])
    logits_TV[:, high - low :] = -torch.inf
    largest_T = logits_TV.amax(1).to(_wide(logits_TV.dtype))
    # a device of padding only has none: the least finite number makes its exponentials 0
    return largest_T.clamp_(min=torch.finfo(largest_T.dtype).min)


def exponential_terms(
    logits_BSV: Tensor, maximum_T: Tensor, targets_BS: Tensor, shard: TensorShard
) -> Tensor:
    """The terms here of two sums over the devices: of exp(logit - maximum), and the target's logit where it is here; [2, T].

    Logits are overwritten, by their exponentials and then by their gradient: nothing else may read them, and one backward is
    run.
    """
    logits_TV = logits_BSV.view(-1, logits_BSV.shape[-1])
    return _Terms.apply(logits_TV, maximum_T, targets_BS.reshape(-1), shard)  # type: ignore[no-untyped-call, no-any-return]


class _Terms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_TV: Tensor, maximum_T: Tensor, targets_T: Tensor, shard: TensorShard
    ) -> Tensor:
        exponentials_TV = logits_TV.detach().to(_wide(logits_TV.dtype))
        is_here_T, place_T = _places(targets_T, shard)
        target_T = exponentials_TV.gather(1, place_T[:, None])[:, 0].masked_fill_(~is_here_T, 0.0)
        exponentials_TV.sub_(maximum_T[:, None]).exp_()
        ctx.save_for_backward(exponentials_TV, is_here_T, place_T)
        ctx.dtype = logits_TV.dtype
        return torch.stack([exponentials_TV.sum(1), target_T])

    @staticmethod
    def backward(ctx: Any, dterms_2T: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials_TV, is_here_T, place_T = ctx.saved_tensors
        gradient_TV = exponentials_TV.mul_(dterms_2T[0][:, None])
        rows_T = torch.nonzero(is_here_T)[:, 0]
        gradient_TV[rows_T, place_T[rows_T]] += dterms_2T[1][rows_T]
        return gradient_TV.to(ctx.dtype), None, None, None


def split_cross_entropy(sums_2T: Tensor, maximum_T: Tensor, targets_BS: Tensor, weight: float) -> Tensor:
    """Sum over tokens of -log p(target) in nats, times `weight`, from the sums of all devices' terms: a scalar, the same on
    all devices. Tokens with IGNORED_TARGET are left out."""
    is_left_out_T = targets_BS.reshape(-1) == IGNORED_TARGET
    losses_T = sums_2T[0].log() + maximum_T - sums_2T[1]
    return losses_T.masked_fill(is_left_out_T, 0.0).sum() * weight


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The format in which the loss is summed: 16-bit logits in float32."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
