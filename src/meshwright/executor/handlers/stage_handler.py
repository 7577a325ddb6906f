"""Handlers of training: F, R, B, I and W on a stage of a decoder.

Shapes: B samples, S tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.handlers import segment_handler
from meshwright.executor.handlers.gradient_write import gradient_writes, is_of_groups, of_groups
from meshwright.executor.handlers.saved_forward import SavedForward
from meshwright.executor.handlers.vocabulary_handler import read_of_kind, writes_kind
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handler, Handlers, Pending, Row, reads_of_kind
from meshwright.ir.core_vocabulary import SKIP, SKIP_GRADIENT


def _forward(
    context: Context, row: Row, inputs: Sequence[Any]
) -> tuple[Tensor, tuple[Tensor, ...], SavedForward]:
    """Output of a stage (its share of the loss on the last hop), what stages beside the path read, and, with gradients
    enabled, what backward needs.
    """
    state, x = context.training, _input(row, inputs)
    saved = SavedForward(WeightGradientQueue(row.text))
    beside = tuple(value for _, value in reads_of_kind(row, inputs, SKIP.name))
    begun = saved.begin(*(() if x is None else (x,)), *beside)
    x, received = (
        (state.data.tokens(row.microbatch, context.device)[0], begun) if x is None else (begun[0], begun[1:])
    )
    with registering(saved.queue):
        y, given = state.apply(row.stage, row.microbatch, x, received, context.device)
        if row.is_last and state.shard is None:
            targets_BS = state.data.tokens(row.microbatch, context.device)[1][:, -y.shape[1] :]
            y = state.loss_of(y, targets_BS, state.data.token_weight(row.microbatch))
            saved.close_in_loss(y)
        else:
            saved.close(y, *given)
    return y.detach(), tuple(value.detach() for value in given), saved


def forward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Forward of one microbatch; without ``saved`` among its writes it keeps nothing (recompute)."""
    state = context.training
    with torch.set_grad_enabled(writes_kind(row, "saved")), state.reading(row, inputs):
        y, given, saved = _forward(context, row, inputs)
    if row.is_last and state.shard is None:
        state.count_loss(y)
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
    state = context.training
    with state.reading(row, inputs):
        state.begin_gradients(row.stage)
        gradient, received = _run_backward(context, row, inputs)
    state.contributed(row)
    return (gradient, *_more_gradients(context, row, 1, gradient, received))


def _run_backward(
    context: Context, row: Row, inputs: Sequence[Any]
) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Gradients of what came along the path (None: tokens), and of what came beside it."""
    saved: SavedForward = inputs[0]
    taken = saved.run_backward(*_output_gradients(context, row, inputs))
    num_beside = sum(1 for names in row.writes if names and names[0].kind == SKIP_GRADIENT.name)
    return (taken[0] if len(taken) > num_beside else None), taken[len(taken) - num_beside :]


def _output_gradients(context: Context, row: Row, inputs: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """What a backward starts from: the output's gradient (None: the loss, which its own forward made), then that of every
    output which stages beside the path read, summed over these in the order of its edges.
    """
    gradient: Tensor | None = inputs[1]
    if gradient is None:
        gradient = read_of_kind(row, inputs, "output_gradient")
    sums: dict[int, Tensor] = {}
    outputs: tuple[int, ...] = context.training.outputs_of_edges.get(row.stage, ())
    for name, value in reads_of_kind(row, inputs, SKIP_GRADIENT.name):
        output = outputs[name.part]
        sums[output] = sums[output] + value if output in sums else value
    return gradient, *(sums[output] for output in sorted(sums))


def _more_gradients(
    context: Context, row: Row, first: int, gradient: Tensor | None, received: Sequence[Tensor | None]
) -> tuple[Any, ...]:
    """What a backward's effect writes from its write `first` on: gradients of weights and their buffers, the gradients of
    what it received beside the path; for a split embedding its input's once more.
    """
    rest = iter(received)
    found: list[Any] = []
    for names, is_many in zip(row.writes[first:], row.is_many[first:], strict=True):
        if names and is_of_groups(names):
            found.append(of_groups(context, names, is_many))
        else:
            found.append(next(rest) if names and names[0].kind == SKIP_GRADIENT.name else gradient)
    return tuple(found)


def input_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of the input now; what the weights' gradients need goes on the queue."""
    state, saved = context.training, inputs[0]
    with deferring(saved.queue), state.reading(row, inputs):
        gradient, received = _run_backward(context, row, inputs)
    return (gradient, saved.queue, *_more_gradients(context, row, 2, gradient, received))


def weight_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Weights' gradients of what I left; the queue checks that none is missing."""
    context.training.begin_gradients(row.stage)
    queue: WeightGradientQueue = inputs[1]
    if queue.num_registered or len(queue):
        queue.run()
    context.training.contributed(row)
    return gradient_writes(context, row)


def _by_stage(of_stage: Handler, of_segment: Handler) -> Handler:
    """The handler of a compute: of a whole stage, or of a segment of one."""

    def handle(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any] | Pending:
        chosen = of_segment if context.training.segments else of_stage
        return chosen(context, row, inputs)

    return handle


HANDLERS: Handlers = {
    "F": _by_stage(forward, segment_handler.forward),
    "R": _by_stage(recompute, segment_handler.recompute),
    "B": _by_stage(backward, segment_handler.backward),
    "I": _by_stage(input_gradient, segment_handler.input_gradient),
    "W": weight_gradient,
}
