"""Handlers of training: F, R, B, I, W, REDUCE_GRAD and STEP on a stage of a decoder.

Shapes: B samples, S tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.handler import Pending, Row, handles
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering


class Saved:
    """What a forward keeps for its backward: the input as a leaf of the graph, the graph's end, and the queue for W.

    The end is a number without data of the output's size: the output itself is free once it has been sent.
    """

    __slots__ = ("x", "end", "gradient", "queue")

    def __init__(self, x: Tensor, queue: WeightGradientQueue) -> None:
        self.x, self.queue = x, queue
        self.end: Tensor | None = None
        self.gradient: Tensor | None = None

    def run_backward(self, gradient: Tensor | None) -> Tensor | None:
        """Backward of the whole graph; the gradient of the input, where the input is no token. Frees the graph."""
        end, x = self.end, self.x
        assert end is not None, "one backward for each forward: the program's values see to it"
        self.gradient, self.end, self.x = gradient, None, x[:0].detach()
        torch.autograd.backward(end)
        self.gradient = None
        return x.grad


class _End(torch.autograd.Function):
    """Ends a graph in a number; its backward takes the output's gradient from `Saved`."""

    @staticmethod
    def forward(ctx: Any, y_BSE: Tensor, saved: Saved) -> Tensor:
        ctx.saved = saved
        return y_BSE.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor | None, None]:
        gradient, ctx.saved.gradient = ctx.saved.gradient, None
        return gradient, None


def _forward(context: Any, row: Row, x_BSE: Tensor | None) -> tuple[Tensor, Saved]:
    """Output of a stage (its share of the loss on the last hop) and, with gradients enabled, what backward needs."""
    state = context.training
    if x_BSE is None:
        x = state.data(row.microbatch, context.device)[0]
    else:
        x = x_BSE.detach()
        x.requires_grad_(torch.is_grad_enabled())
    saved = Saved(x, WeightGradientQueue(row.text))
    with registering(saved.queue):
        y = state.stages[row.stage](x, state.keys(row.microbatch))
        if row.is_last:
            targets_BS = state.data(row.microbatch, context.device)[1]
            y = saved.end = token_cross_entropy(y, targets_BS, state.token_weight(row.microbatch))
        elif torch.is_grad_enabled():
            saved.end = _End.apply(y, saved)  # type: ignore[no-untyped-call]
    return y.detach(), saved


@handles("F")
def forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Forward of one microbatch; without ``saved`` among its writes it keeps nothing (recompute)."""
    keeps = len(row.writes) > 1
    with torch.set_grad_enabled(keeps):
        y, saved = _forward(context, row, inputs[0])
    output: Tensor | None = y
    if row.is_last:
        state, output = context.training, None
        state.loss = y if state.loss is None else state.loss + y
    return (output, saved) if keeps else (output,)


@handles("R")
def recompute(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The forward again, with the same draws, for what it did not keep."""
    with torch.enable_grad():
        _, saved = _forward(context, row, inputs[0])
    return (saved,)


@handles("B")
def backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of input and weights at once."""
    gradients = context.training.live_gradients(row.stage)
    saved: Saved = inputs[0]
    return saved.run_backward(inputs[1]), gradients


@handles("I")
def input_gradient(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of the input now; what the weights' gradients need goes on the queue."""
    saved: Saved = inputs[0]
    with deferring(saved.queue):
        gradient = saved.run_backward(inputs[1])
    return gradient, saved.queue


@handles("W")
def weight_gradient(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Weights' gradients of what I left; the queue checks that none is missing."""
    gradients = context.training.live_gradients(row.stage)
    queue: WeightGradientQueue = inputs[1]
    queue.run()
    return (gradients,)


@handles("REDUCE_GRAD")
def reduce_gradients(context: Any, row: Row, inputs: Sequence[Any]) -> Pending:
    """Sum of a group's gradients over its copies; losses carry their tokens' weights, so the sum is the whole."""
    (gradient,) = inputs
    context.links.pass_ring(row.members, gradient.flat.nbytes, passes=2)
    work = context.groups.collective(row).allreduce([gradient.flat])

    def wait() -> Sequence[Any]:
        work.wait()
        return (gradient,)

    return Pending(wait)


@handles("STEP")
def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The optimizer's step on the groups that the row writes, and the end of their gradients."""
    state = context.training
    stepped = {name.index for names in row.writes for name in names or () if name.kind == "parameter"}
    for g in sorted(stepped & state.gradients.keys()):
        state.count(g)
        state.steps[g].run()
        state.gradients[g].end()
    return row.outputs(lambda name: state.gradients.get(name.index))
