"""Handlers of a split vocabulary: LOOKUP, S, T, SCATTER on a device's rows, and their exchanges.

Shapes: B samples, S tokens of one, T tokens of all samples, E hidden size, R rows of the vocabulary on this device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.handlers.gradient_write import gradient_writes, of_groups, writes_gradients
from meshwright.executor.models.vocabulary_shard import VocabularyShard
from meshwright.executor.ops.split_cross_entropy import (
    Normalizer,
    early_input_gradient,
    logit_gradient,
    partial_softmax,
)
from meshwright.executor.ops.weight_gradient_queue import accumulate_into
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Pending, Row

NO_OUTPUTS: tuple[Any, ...] = ()


def writes_kind(row: Row, kind: str) -> bool:
    """Does a row write a value of this kind?"""
    return any(names and names[0].kind == kind for names in row.writes)


def read_of_kind(row: Row, inputs: Sequence[Any], kind: str) -> Any:
    """The value of this kind that a row reads, or None."""
    found = [value for names, value in zip(row.reads, inputs) if names and names[0].kind == kind]
    return found[0] if found else None


def _flat(x_BSE: Tensor) -> Tensor:
    return x_BSE.reshape(-1, x_BSE.shape[-1])


def _end(context: Context, row: Row, hop: int) -> int:
    """Rank of the device at a hop of the path, among the members of a row."""
    path = context.training.program.tables.paths[0]
    return int(row.members[path[hop].device])


def lookup(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """This device's part of the embedding's output."""
    state = context.training
    with state.reading(row, inputs):
        part_BSE: Tensor = state.shard.lookup(state.data.tokens(row.microbatch, context.device)[0])
    return (part_BSE,)


def scatter(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of this device's rows of the embedding."""
    state = context.training
    state.begin_gradients(row.stage)
    with torch.no_grad():
        state.shard.accumulate_lookup(state.data.tokens(row.microbatch, context.device)[0], inputs[0])
    state.contributed(row)
    return gradient_writes(context, row)


def softmax_of_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Logits of this device's rows and their softmax; with one barrier also both halves of the input's gradient."""
    state = context.training
    shard: VocabularyShard = state.shard
    targets_T = state.data.tokens(row.microbatch, context.device)[1].reshape(-1)
    with torch.no_grad(), state.reading(row, inputs):
        part = partial_softmax(
            _flat(inputs[0]), shard.head, targets_T, shard.first_row, shard.num_rows, state.has_one_barrier
        )
    return (part,)


def sum_softmax(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Maximum, sum and target's logit over all devices; with one barrier then the input's gradient, to the last stage."""
    (part,) = inputs
    group, last = context.groups.collective(row), _end(context, row, -1)
    maximum_T = part.maximum_T.clone()
    context.links.pass_ring(row.members, 3 * maximum_T.nbytes, 2, row.name)
    work = dist.all_reduce(maximum_T, dist.ReduceOp.MAX, group=group, async_op=True)

    def wait() -> Sequence[Any]:
        work.wait()
        sums_T = torch.stack([part.sum_T * (part.maximum_T - maximum_T).exp(), part.target_T])
        dist.all_reduce(sums_T, group=group)
        normalizer = Normalizer(maximum_T, *sums_T.unbind())
        if part.weighted_TE is None:
            return (normalizer,)
        weight = context.training.data.token_weight(row.microbatch)
        gradient_TE = early_input_gradient(part, normalizer, weight)
        context.links.pass_ring(row.members, gradient_TE.nbytes, 1, row.name)
        dist.reduce(gradient_TE, last, group=group)
        return (normalizer, _shaped(context, row, gradient_TE)) if context.rank == last else (normalizer,)

    return Pending(wait)


def gradients_of_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient of this device's rows of the head, and the loss on the last stage's device; with two barriers also this
    device's part of the input's gradient."""
    state = context.training
    x_BSE, part, normalizer = inputs[:3]
    _count_loss(context, row, normalizer)
    if not writes_gradients(row):  # an evaluation
        return NO_OUTPUTS
    state.begin_gradients(row.stage)
    weight_RE: Tensor = state.shard.head
    with torch.no_grad(), state.reading(row, inputs):
        gradient_TR = logit_gradient(part, normalizer, state.data.token_weight(row.microbatch)).to(
            weight_RE.dtype
        )
        if weight_RE.requires_grad:
            accumulate_into(weight_RE, gradient_TR.t() @ _flat(x_BSE))
        own = (gradient_TR @ weight_RE,) if writes_kind(row, "output_part") else ()
    state.contributed(row)
    held = zip(row.writes[: len(row.writes) - len(own)], row.is_many, strict=False)
    return *(of_groups(context, names or (), many) for names, many in held), *own


def _count_loss(context: Context, row: Row, normalizer: Normalizer) -> None:
    """Every microbatch's loss once, where the last stage is."""
    state = context.training
    if state.pipeline == state.program.tables.paths[0][-1].device:
        loss = normalizer.loss() * state.data.token_weight(row.microbatch)
        state.loss = loss if state.loss is None else state.loss + loss


def _shaped(context: Context, row: Row, x_TE: Tensor) -> Tensor:
    state = context.training
    return x_TE.view(state.data.counts[row.microbatch], state.training.sequence_length, x_TE.shape[-1])


def sum_output_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Two barriers: the devices' parts of the input's gradient, summed on the last stage's device."""
    return _summed(context, row, inputs[0], _end(context, row, -1))


def sum_input(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The devices' parts of the embedding's output, summed on the first stage's device."""
    return _summed(context, row, inputs[0], _end(context, row, 0))


def _summed(context: Context, row: Row, part: Tensor, root: int) -> Pending:
    context.links.pass_ring(row.members, part.nbytes, 1, row.name)
    work = dist.reduce(part, root, group=context.groups.collective(row), async_op=True)

    def wait() -> Sequence[Any]:
        work.wait()
        if context.rank != root:
            return NO_OUTPUTS
        return (part if part.dim() == 3 else _shaped(context, row, part),)

    return Pending(wait)


def share_output(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The last stage's output, to all devices."""
    return _shared(context, row, inputs, _end(context, row, -1))


def share_input_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The gradient of the first stage's input, to all devices."""
    return _shared(context, row, inputs, _end(context, row, 0))


def _shared(context: Context, row: Row, inputs: Sequence[Any], root: int) -> Pending:
    state = context.training
    if inputs:
        x_BSE = inputs[0].contiguous()
    else:
        shape = (
            state.data.counts[row.microbatch],
            state.training.sequence_length,
            state.training.model.hidden_size,
        )
        x_BSE = torch.empty(shape, dtype=context.dtype, device=context.device)
    context.links.pass_ring(row.members, x_BSE.nbytes, 1, row.name)
    work = dist.broadcast(x_BSE, root, group=context.groups.collective(row), async_op=True)

    return Pending.of([work], x_BSE)


HANDLERS: Handlers = {
    "LOOKUP": lookup,
    "SCATTER": scatter,
    "S": softmax_of_rows,
    "SUM_SOFTMAX": sum_softmax,
    "T": gradients_of_rows,
    "SUM_OUTPUT_GRAD": sum_output_gradient,
    "SUM_INPUT": sum_input,
    "SHARE_OUTPUT": share_output,
    "SHARE_INPUT_GRAD": share_input_gradient,
}
