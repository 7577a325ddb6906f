"""Handlers of segments: F, R, B, I and W of a run of a stage's steps between two exchanges.

What a segment reads and makes of others stands first among a row's reads and writes, in the order of its chain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.handlers import relay_end
from meshwright.executor.handlers.gradient_write import is_of_groups, of_groups
from meshwright.executor.handlers.saved_forward import SavedForward, contributions
from meshwright.executor.handlers.vocabulary_handler import writes_kind
from meshwright.executor.models.chain.decoder_steps import run_segment
from meshwright.executor.models.chain.stage_segment import StageSegment
from meshwright.executor.ops.fetched_again import fetching_again
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Row
from meshwright.executor.state.held_tensors import HeldTensors
from meshwright.ir.core_vocabulary import REMADE, SAVED
from meshwright.stage.chain.chain import LOSS
from meshwright.stage.relay.rounds import AGAIN

Read = Tensor | tuple[Tensor, ...]  # a value, or those of several token parts
KEPT = (SAVED.kind, REMADE.name)  # what a forward leaves for its backward


def forward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Forward of one microbatch; without ``saved`` among its writes it keeps nothing."""
    own, state = context.training.segments[row.stage], context.training
    if own.segment.relay is not None:
        return relay_end.finished(context, row, inputs)
    with torch.set_grad_enabled(writes_kind(row, "saved")), state.reading(row, inputs):
        values, saved = _forward(context, row, inputs, own)
    if LOSS in values:
        state.count_loss(values[LOSS].detach())
    return _outputs(row, own, values, saved)


def recompute(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The forward again, with the same draws, for what it did not keep, and for what others did not keep of it; its loss has
    been counted."""
    own, state = context.training.segments[row.stage], context.training
    if own.segment.relay is not None:
        return relay_end.finished(context, row, inputs)
    with torch.enable_grad(), state.reading(row, inputs):
        values, saved = _forward(context, row, inputs, own)
    kinds = [names[0].kind if names else "" for names in row.writes]
    return [saved if kind in KEPT else values[kind.removesuffix(AGAIN)].detach() for kind in kinds]


def _forward(
    context: Context, row: Row, inputs: Sequence[Any], own: StageSegment
) -> tuple[dict[str, Tensor], SavedForward]:
    """What the segment makes, and, with gradients enabled, what its backward needs."""
    saved, given = SavedForward(WeightGradientQueue(row.text)), inputs[: len(own.segment.reads)]
    names = [value.name for value in own.segment.reads]
    floating = [each for each, name in zip(given, names, strict=True) if own.has_gradient(name)]
    begun = iter(saved.begin(*_flat(floating)))
    values: dict[str, Any] = {
        name: _like(each, begun) if own.has_gradient(name) else each
        for name, each in zip(names, given, strict=True)
    }
    fetched = own.fetched_again
    watching = contextlib.nullcontext() if fetched is None else fetching_again(values[fetched])
    data = context.training.microbatch_data(row.microbatch, row.part, context.device)
    with registering(saved.queue), _holding(context, row, own, saved), watching as saved.again:
        made = run_segment(context.training.stages[own.stage], own.segment, data, values)
    if LOSS in made:
        saved.close_in_loss(made[LOSS])
    else:
        saved.close(*(made[name] for name in own.segment.writes if own.has_gradient(name)))
    return made, saved


def _holding(
    context: Context, row: Row, own: StageSegment, saved: SavedForward
) -> contextlib.AbstractContextManager[Any]:
    """A context in which what the graph keeps is held apart, where it is to leave the device."""
    if (row.stage, row.microbatch) not in context.training.stored:
        return contextlib.nullcontext()
    saved.held = HeldTensors(context.training.stages[own.stage].parameters())
    return saved.held.watching()


def _outputs(row: Row, own: StageSegment, values: dict[str, Tensor], saved: SavedForward) -> Sequence[Any]:
    """What a forward writes: values that others read (a share of those that are shared), then what is kept."""
    made = [own.given(name, values[name].detach()) for name in own.segment.writes]
    kept = [saved] * sum(1 for names in row.writes if names and names[0].kind in KEPT)
    return (*made[: len(row.writes) - len(kept)], *kept)


def backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of what it read, and of its weights, at once."""
    state, own = context.training, context.training.segments[row.stage]
    if own.segment.relay is not None:
        return relay_end.gradients(context, row, inputs)
    with state.reading(row, inputs):
        state.begin_gradients(row.stage)
        taken = _run_backward(own, row, inputs)
    rest = row.writes[len(taken) :]
    if rest:
        state.contributed(row)
    return (*taken, *_behind(context, row, len(taken)))


def input_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of what it read now; what the weights' gradients need goes on the queue."""
    state, own, saved = context.training, context.training.segments[row.stage], inputs[0]
    if own.segment.relay is not None:
        return relay_end.gradients(context, row, inputs)
    with deferring(saved.queue), state.reading(row, inputs):
        taken = _run_backward(own, row, inputs)
    return (*taken, *_behind(context, row, len(taken), saved.queue))


def _run_backward(own: StageSegment, row: Row, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of what the segment read, as they go back."""
    saved: SavedForward = inputs[0]
    num = len(own.differentiable_writes)
    if saved.again is not None:
        saved.again.value = inputs[1 + num]
    found = saved.run_backward(*inputs[1 : 1 + num])
    flat = iter(contributions(found, saved.queue.owed()))
    saved.again = None
    wanted = zip(row.writes[: len(own.differentiable_reads)], row.is_many, strict=False)
    return own.taken(
        tuple(tuple(islice(flat, len(names or ()))) if many else next(flat) for names, many in wanted)
    )


def _flat(values: Sequence[Read]) -> list[Tensor]:
    """Those of several token parts one by one."""
    return [each for value in values for each in (value if isinstance(value, tuple) else (value,))]


def _like(value: Read, flat: Iterator[Tensor]) -> Read:
    """As many of `flat` as a value is: of several token parts a tuple."""
    return tuple(islice(flat, len(value))) if isinstance(value, tuple) else next(flat)


def _behind(context: Context, row: Row, num: int, kept: object = None) -> Sequence[object]:
    """What a backward writes behind the gradients of what it read, where the segment trains: gradients of weights, or what
    these need, and their buffers."""
    rest = zip(row.writes[num:], row.is_many[num:], strict=True)
    return [of_groups(context, names or (), many) if is_of_groups(names) else kept for names, many in rest]
