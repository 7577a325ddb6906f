"""Tensor and sequence parallelism of a decoder: its matrices on one device of a group, and the sums between them.

Shapes: B samples, S tokens, s tokens of this device's part of the sequence, E hidden size, I inputs, O outputs here, V rows
of the vocabulary here, T tokens of all samples.

Between a column-parallel and a row-parallel matrix every device works on its own outputs; what it adds to the residual
stream is summed over the group (Shoeybi et al. 2019, arXiv 1909.08053). With sequence parallelism the residual stream is
divided by tokens: the sum becomes a scatter, and what a column-parallel matrix reads is gathered, again in its backward, so
that only this device's part is kept (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.ops.linear import accumulate_linear
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.executor.ops.weight_gradient_queue import (
    WeightGradientQueue,
    accumulate_into,
    deliver,
    registered_queue,
)
from meshwright.executor.team.inner_team import InnerTeam

TOKENS = 1  # dimension of the tokens in [B, S, E]


@dataclass(frozen=True, eq=False)
class TensorParallel:
    """This device's place in its group. `divides_sequence`: the residual stream is divided by tokens."""

    shard: TensorShard
    team: InnerTeam
    divides_sequence: bool = False

    def entered(self, x: Tensor) -> Tensor:
        """What a column-parallel matrix reads, of the whole sequence; no graph."""
        return self.team.gathered(x, TOKENS) if self.divides_sequence else x

    def entering(self, x: Tensor) -> Callable[[], Tensor]:
        """Start what `entered` does; the caller may compute before it asks for the result."""
        return self.team.gathering(x, TOKENS) if self.divides_sequence else lambda: x

    def left(self, part: Tensor) -> Tensor:
        """The sum of the devices' parts, as the residual stream has it; no graph. `part` may be overwritten."""
        return self.team.scattered_sum(part, TOKENS) if self.divides_sequence else self.team.sum(part)

    def own_tokens(self, x: Tensor) -> Tensor:
        """This device's part of the sequence."""
        return self.team.own_part(x, TOKENS) if self.divides_sequence else x


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        parallel: TensorParallel,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        ctx.save_for_backward(x if _trains(weight_OI, bias_O) else None)
        ctx.weight_OI, ctx.bias_O, ctx.parallel, ctx.queue = weight_OI, bias_O, parallel, queue
        return F.linear(parallel.entered(x), weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (x,) = ctx.saved_tensors
        # travels beside the product, which does not need it
        entering = None if x is None else ctx.parallel.entering(x)
        dx = None
        if ctx.needs_input_grad[0]:
            dx_BSI = torch.mm(dy.reshape(-1, dy.shape[-1]), ctx.weight_OI).view(*dy.shape[:-1], -1)
            dx = ctx.parallel.left(dx_BSI)
        if entering is not None:
            deliver(ctx.queue, accumulate_linear, entering(), dy, ctx.weight_OI, ctx.bias_O)
        return dx, None, None, None, None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        parallel: TensorParallel,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        ctx.save_for_backward(x if _trains(weight_OI, bias_O) else None)
        ctx.weight_OI, ctx.bias_O, ctx.parallel, ctx.queue = weight_OI, bias_O, parallel, queue
        y = parallel.left(F.linear(x, weight_OI))
        return y if bias_O is None else y.add_(bias_O)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        (x,) = ctx.saved_tensors
        whole = ctx.parallel.entered(dy)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.mm(whole.reshape(-1, whole.shape[-1]), ctx.weight_OI).view(*whole.shape[:-1], -1)
        if x is not None:
            deliver(ctx.queue, accumulate_row, x, whole, dy, ctx.weight_OI, ctx.bias_O)
        return dx, None, None, None, None


def enter(x_BsE: Tensor, parallel: TensorParallel) -> Tensor:
    """What several products of this device read, [B, S, E]; the sum of the devices' gradients goes back, [B, s, E]."""
    return _Enter.apply(x_BsE, parallel)  # type: ignore[no-untyped-call, no-any-return]


def leave(part_BSE: Tensor, parallel: TensorParallel) -> Tensor:
    """The sum of the devices' parts, as the residual stream has it: [B, S, E] -> [B, s, E]."""
    return _Leave.apply(part_BSE, parallel)  # type: ignore[no-untyped-call, no-any-return]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BsE: Tensor, parallel: TensorParallel) -> Tensor:
        ctx.parallel = parallel
        whole_BSE = parallel.entered(x_BsE)
        return whole_BSE.view_as(whole_BSE)

    @staticmethod
    def backward(ctx: Any, dx_BSE: Tensor) -> tuple[Tensor, None]:
        return ctx.parallel.left(dx_BSE), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part_BSE: Tensor, parallel: TensorParallel) -> Tensor:
        ctx.parallel = parallel
        return parallel.left(part_BSE.clone())

    @staticmethod
    def backward(ctx: Any, dy_BsE: Tensor) -> tuple[Tensor, None]:
        return ctx.parallel.entered(dy_BsE), None


def _trains(weight_OI: Tensor, bias_O: Tensor | None) -> bool:
    """Is there a weight gradient, which reads the input?"""
    return weight_OI.requires_grad or (bias_O is not None and bias_O.requires_grad)


class ParallelLinear(nn.Linear):
    """This device's part of a linear layer; `function` is the autograd function of its product."""

    function: ClassVar[Any]

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool, parallel: TensorParallel) -> None:
        super().__init__(num_inputs, num_outputs, bias)
        self.parallel = parallel

    def forward(self, input: Tensor) -> Tensor:
        """The product, counted on the queue of its forward."""
        queue = registered_queue(self.weight, self.bias)
        y: Tensor = self.function.apply(input, self.weight, self.bias, self.parallel, queue)
        return y


class ColumnLinear(ParallelLinear):
    """This device's outputs of a linear layer that reads the residual stream: [B, s or S, I] -> [B, S, O]."""

    function = _Column


class RowLinear(ParallelLinear):
    """This device's inputs of a linear layer that adds to the residual stream: [B, S, I] -> [B, s or S, O], summed; the bias
    is added once, behind the sum."""

    function = _Row


def accumulate_row(x: Tensor, whole: Tensor, dy: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> None:
    """Weight half; the bias's gradient is of the tokens here, which with a divided sequence is a part of it."""
    accumulate_linear(x, whole, weight_OI, None)
    if bias_O is not None and bias_O.requires_grad:
        accumulate_into(bias_O, dy.reshape(-1, dy.shape[-1]).sum(0))


class VocabularyEmbedding(nn.Embedding):
    """This device's rows of the embedding: tokens_BS -> [B, s or S, E], summed over the devices."""

    def __init__(self, num_rows: int, width: int, parallel: TensorParallel) -> None:
        super().__init__(num_rows, width)
        self.parallel = parallel

    def forward(self, input: Tensor) -> Tensor:
        """Zero for tokens of other devices' rows, then the sum."""
        queue = registered_queue(self.weight)
        return _Lookup.apply(input, self.weight, self.parallel, queue)  # type: ignore[no-untyped-call, no-any-return]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens_BS: Tensor,
        weight_VE: Tensor,
        parallel: TensorParallel,
        queue: WeightGradientQueue | None,
    ) -> Tensor:
        is_here_BS, place_BS = _places(tokens_BS, parallel.shard)
        ctx.save_for_backward(is_here_BS, place_BS)
        ctx.weight_VE, ctx.parallel, ctx.queue = weight_VE, parallel, queue
        return parallel.left(F.embedding(place_BS, weight_VE) * is_here_BS[..., None])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None]:
        is_here_BS, place_BS = ctx.saved_tensors
        deliver(ctx.queue, _accumulate_lookup, is_here_BS, place_BS, ctx.parallel.entered(dy), ctx.weight_VE)
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


def split_cross_entropy(
    logits_BSV: Tensor, targets_BS: Tensor, weight: float, parallel: TensorParallel
) -> Tensor:
    """Sum over tokens of -log p(target) in nats, times `weight`, from every device's rows of the logits: a scalar, the same
    on all devices. 16-bit logits are summed in float32; tokens with IGNORED_TARGET are left out. Logits are overwritten, by
    probabilities and then by their gradient: nothing else may read them, and one backward is run."""
    logits_TV = logits_BSV.reshape(-1, logits_BSV.shape[-1])
    return _SplitLoss.apply(logits_TV, targets_BS.reshape(-1), weight, parallel)  # type: ignore[no-untyped-call, no-any-return]


class _SplitLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_TV: Tensor, targets_T: Tensor, weight: float, parallel: TensorParallel
    ) -> Tensor:
        low, high = parallel.shard.rows(parallel.shard.model.vocabulary_size)
        wide = torch.float32 if logits_TV.dtype in (torch.bfloat16, torch.float16) else logits_TV.dtype
        p_TV = logits_TV.detach().to(wide)
        p_TV[:, high - low :] = -torch.inf  # rows of padding
        maximum_T = p_TV.amax(1).clamp_(min=torch.finfo(wide).min)
        parallel.team.largest(maximum_T)
        is_here_T, place_T = _places(targets_T, parallel.shard)
        target_T = p_TV.gather(1, place_T[:, None])[:, 0].masked_fill_(~is_here_T, 0.0)
        p_TV.sub_(maximum_T[:, None]).exp_()
        sums_2T = parallel.team.sum(torch.stack([p_TV.sum(1), target_T]))
        p_TV.div_(sums_2T[0][:, None])
        is_left_out_T = targets_T == IGNORED_TARGET
        p_TV.masked_fill_(is_left_out_T[:, None], 0.0)
        ctx.save_for_backward(p_TV, is_here_T, place_T)
        ctx.weight, ctx.dtype = weight, logits_TV.dtype
        losses_T = sums_2T[0].log() + maximum_T - sums_2T[1]
        return losses_T.masked_fill_(is_left_out_T, 0.0).sum() * weight

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None]:
        p_TV, is_here_T, place_T = ctx.saved_tensors
        rows_T = torch.nonzero(is_here_T)[:, 0]
        p_TV[rows_T, place_T[rows_T]] -= 1.0
        return p_TV.mul_(dloss * ctx.weight).to(ctx.dtype), None, None, None
