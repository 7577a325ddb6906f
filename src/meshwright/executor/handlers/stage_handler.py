"""Handlers of training: F, R, B, I and W on a stage of a decoder.

Shapes: B samples, S tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.handlers.vocabulary_handler import read_of_kind, writes_kind
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Row, ValueName, reads_of_kind
from meshwright.ir.core_vocabulary import GRADIENT_BUFFER, SKIP, SKIP_GRADIENT


class SavedForward:
    """What a forward keeps for its backward: the inputs as leaves of the graph, the graph's end, and the queue for W.

    The end is a number without data of the output's size: the output itself is free once it has been sent. ``received``:
    inputs from stages beside the path.
    """

    __slots__ = ("x", "received", "end", "gradients", "queue")

    def __init__(self, x: Tensor, received: tuple[Tensor, ...], queue: WeightGradientQueue) -> None:
        self.x, self.received, self.queue = x, received, queue
        self.end: Tensor | None = None
        self.gradients: tuple[Tensor | None, ...] = ()

    def run_backward(self, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Backward of the whole graph from the gradients of its outputs; those of the input, where the input is no token,
        and of what was received. Frees the graph.
        """
        end, x, received = self.end, self.x, self.received
        assert end is not None, "one backward for each forward: the program's values see to it"
        self.gradients, self.end, self.x, self.received = gradients, None, x[:0].detach(), ()
        if end.requires_grad:  # nothing does in a first stage that is frozen
            torch.autograd.backward(end)
        self.gradients = ()
        return x.grad, *(leaf.grad for leaf in received)


class _End(torch.autograd.Function):
    """Ends a graph in a number; its backward takes the outputs' gradients from `SavedForward`."""

    @staticmethod
    def forward(ctx: Any, saved: SavedForward, y_BSE: Tensor, *given: Tensor) -> Tensor:
        ctx.saved = saved
        return y_BSE.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.saved.gradients = ctx.saved.gradients, ()
        return None, *gradients


def _forward(
    context: Context, row: Row, inputs: Sequence[Any]
) -> tuple[Tensor, tuple[Tensor, ...], SavedForward]:
    """Output of a stage (its share of the loss on the last hop), what stages beside the path read, and, with gradients
    enabled, what backward needs.
    """
    state, x_BSE = context.training, _input(row, inputs)
    x = (
        state.data.tokens(row.microbatch, context.device)[0]
        if x_BSE is None
        else _leaf(state.whole(row, -1, x_BSE))
    )
    received = tuple(_leaf(value) for _, value in reads_of_kind(row, inputs, SKIP.name))
    saved = SavedForward(x, received, WeightGradientQueue(row.text))
    with registering(saved.queue):
        y, given = state.apply(row.stage, row.microbatch, x, received, context.device)
        if row.is_last and state.shard is None:
            targets_BS = state.data.tokens(row.microbatch, context.device)[1][:, -y.shape[1] :]
            y = saved.end = state.loss_of(y, targets_BS, state.data.token_weight(row.microbatch))
        elif torch.is_grad_enabled():
            saved.end = _End.apply(saved, y, *given)  # type: ignore[no-untyped-call]
    return y.detach(), tuple(value.detach() for value in given), saved


def _leaf(value: Tensor) -> Tensor:
    """A value of another stage, as a leaf of this one's graph."""
    return value.detach().requires_grad_(torch.is_grad_enabled())


def forward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Forward of one microbatch; without ``saved`` among its writes it keeps nothing (recompute)."""
    state = context.training
    with torch.set_grad_enabled(writes_kind(row, "saved")), state.reading(row, inputs):
        y, given, saved = _forward(context, row, inputs)
    if row.is_last and state.shard is None:
        state.count_loss(y)
    else:
        y = state.share(row, +1, y)
    values = {"activation": y, "output": y, "saved": saved}
    return row.outputs(lambda name: given[name.part] if name.kind == SKIP.name else values[name.kind])


def _input(row: Row, inputs: Sequence[Any]) -> Tensor | None:
    """What a stage works on; None: tokens, which no instruction moves."""
    x_BSE: Tensor | None = inputs[0] if inputs[0] is not None else read_of_kind(row, inputs, "input")
    return x_BSE


def recompute(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The forward again, with the same draws, for what it did not keep."""
    with torch.enable_grad(), context.training.reading(row, inputs):
        _, _, saved = _forward(context, row, inputs)
    return (saved,)


def backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of input and weights at once."""
    state, saved = context.training, inputs[0]
    with state.reading(row, inputs):
        gradients = state.live_gradients(row.stage)
        gradient, *received = saved.run_backward(*_output_gradients(context, row, inputs))
    state.contributed(row)
    gradient = state.share(row, -1, gradient)
    return (gradient, gradients, *_more_gradients(row, gradient, received))


def _output_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """What a backward starts from: the output's gradient (None: the loss, which its own forward made), then that of every
    output which stages beside the path read, summed over these in the order of its edges.
    """
    gradient: Tensor | None = inputs[1]
    if gradient is None:
        gradient = read_of_kind(row, inputs, "output_gradient")
    sums: dict[int, Tensor] = {}
    if gradient is not None:
        gradient = context.training.whole(row, +1, gradient)
    outputs: tuple[int, ...] = context.training.outputs_of_edges.get(row.stage, ())
    for name, value in reads_of_kind(row, inputs, SKIP_GRADIENT.name):
        output = outputs[name.part]
        sums[output] = sums[output] + value if output in sums else value
    return gradient, *(sums[output] for output in sorted(sums))


def _more_gradients(row: Row, gradient: Tensor | None, received: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """What a backward's effect writes behind its first two values: the gradients of what it received beside the path; for
    a split embedding its input's once more; buffers of gradients.
    """
    rest = iter(received)
    found: list[Any] = []
    for names, is_many in zip(row.writes[2:], row.is_many[2:], strict=True):
        kind = names[0].kind if names else ""
        if kind == GRADIENT_BUFFER.name:
            found.append(_buffers(names, is_many))
        else:
            found.append(next(rest) if kind == SKIP_GRADIENT.name else gradient)
    return tuple(found)


def _buffers(names: tuple[ValueName, ...] | None, is_many: bool) -> Any:
    """What stands for the buffers of gradients, which their groups have."""
    return (None,) * len(names or ()) if is_many else None


def input_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of the input now; what the weights' gradients need goes on the queue."""
    state, saved = context.training, inputs[0]
    with deferring(saved.queue), state.reading(row, inputs):
        gradient, *received = saved.run_backward(*_output_gradients(context, row, inputs))
    gradient = state.share(row, -1, gradient)
    return (gradient, saved.queue, *_more_gradients(row, gradient, received))


def weight_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Weights' gradients of what I left; the queue checks that none is missing."""
    gradients = context.training.live_gradients(row.stage)
    queue: WeightGradientQueue = inputs[1]
    if context.training.trains(row.stage):
        queue.run()
    context.training.contributed(row)
    return gradients, *(
        _buffers(names, many) for names, many in zip(row.writes[1:], row.is_many[1:], strict=True)
    )


HANDLERS: Handlers = {
    "F": forward,
    "R": recompute,
    "B": backward,
    "I": input_gradient,
    "W": weight_gradient,
}
