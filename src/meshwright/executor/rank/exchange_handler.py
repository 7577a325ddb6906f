"""Handlers of exchanges and copies by kind: SEND, RECEIVE, LOAD, STORE, COPY; and collectives for names to choose from.

A value whose shape is not known before the run is sent behind a small header with its dtype and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.meter.live_storage import born_on_host
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.executor.team.collective import combining, gathering, scattered_sum, swapping
from meshwright.ir.table import Kind
from meshwright.specs.error import ExecutionError

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
MAX_DIMS = 8
NO_OUTPUTS: tuple[Any, ...] = ()


def first_tensor(row: Row, inputs: Sequence[Any]) -> Tensor:
    """The first value that a row reads, which must be a tensor."""
    for value in inputs:
        if isinstance(value, Tensor):
            return value.detach()
    raise ExecutionError(
        f"{row.text} has no tensor to move", next="let its effect read one value that is a tensor"
    )


def send(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Post the first value read to the peer."""
    tensor = first_tensor(row, inputs)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    group, peer = context.groups.pair(row)

    def post() -> list[Any]:
        header = [(_header(row, tensor), 2 * row.tag + 1)] if row.shape is None else []
        parts = [*header, *([(tensor, 2 * row.tag)] if tensor.numel() else [])]
        return [group.send([part], peer, tag) for part, tag in parts]

    # On a slowed link a message leaves later; to wait for that here would hold back what is posted with it.
    release_s = context.links.message(row.peer, tensor.nbytes, row.name)
    works = [] if release_s else post()

    def wait() -> Sequence[Any]:
        context.links.wait_until(release_s)
        for work in works or post():
            work.wait()
        return NO_OUTPUTS

    return Pending(wait)


def receive(context: Context, row: Row, inputs: Sequence[Any], dtype: torch.dtype | None = None) -> Pending:
    """Post a buffer for the value written, by default of the job's dtype; without a known shape the header comes first."""
    group, peer = context.groups.pair(row)
    if row.shape is None:
        return _receive_sized(context, row, group, peer)
    buffer = torch.empty(row.shape, dtype=dtype or context.dtype, device=context.device)
    work = group.recv([buffer], peer, 2 * row.tag)

    return Pending.of([work], buffer)


def _receive_sized(context: Context, row: Row, group: dist.ProcessGroup, peer: int) -> Pending:
    header = torch.empty(2 + MAX_DIMS, dtype=torch.int64, device=context.device)
    work = group.recv([header], peer, 2 * row.tag + 1)

    def wait() -> Sequence[Any]:
        work.wait()
        code, num_dims, *dims = header.tolist()
        buffer = torch.empty(dims[:num_dims], dtype=DTYPES[code], device=context.device)
        if buffer.numel():
            group.recv([buffer], peer, 2 * row.tag).wait()
        return (buffer,)

    return Pending(wait)


def _header(row: Row, tensor: Tensor) -> Tensor:
    if tensor.dtype not in DTYPES or tensor.dim() > MAX_DIMS:
        raise ExecutionError(
            f"{row.text} sends {tensor.dtype} of {tensor.dim()} dimensions",
            allowed=f"up to {MAX_DIMS} dimensions of {', '.join(str(dtype) for dtype in DTYPES)}",
        )
    dims = [*tensor.shape, *[0] * (MAX_DIMS - tensor.dim())]
    return torch.tensor([DTYPES.index(tensor.dtype), tensor.dim(), *dims], device=tensor.device)


def load(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """A copy on the device."""
    return (first_tensor(row, inputs).to(context.device, copy=True),)


def store(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """A copy in the memory of the host."""
    with born_on_host():
        return (first_tensor(row, inputs).to("cpu", copy=True),)


def copy(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """A copy where the value is."""
    return (first_tensor(row, inputs).clone(),)


def all_reduce(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Sum over the members: in place where the row writes the value that it reads, else that stays what it is."""
    tensor = first_tensor(row, inputs)
    context.links.pass_ring(row.members, tensor.nbytes, 2, row.name)
    in_place = any(value in row.reads for value in row.writes)
    return _one(combining(tensor, context.groups.transport(row), in_place=in_place))


def all_gather(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The members' equal shards one behind the other along the first dimension."""
    return gather_along(context, row, first_tensor(row, inputs))


def reduce_scatter(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The sum's own shard along the first dimension."""
    return scatter_along(context, row, first_tensor(row, inputs))


def gather_along(context: Context, row: Row, part: Tensor, dim: int = 0) -> Pending:
    """The members' equal parts one behind the other along `dim`."""
    context.links.pass_ring(row.members, len(row.members) * part.nbytes, 1, row.name)
    return _one(gathering(part, context.groups.transport(row), dim))


def scatter_along(context: Context, row: Row, whole: Tensor, dim: int = 0) -> Pending:
    """The sum's own equal part along `dim`."""
    context.links.pass_ring(row.members, whole.nbytes, 1, row.name)
    team = context.groups.transport(row)
    return _one(lambda: scattered_sum(whole, team, dim))


def swap_along(context: Context, row: Row, tensor: Tensor, split_dim: int, join_dim: int) -> Pending:
    """Equal parts along `split_dim`, of which member n gets the n-th of all, joined along `join_dim`."""
    num = len(row.members)
    context.links.pass_to_each(row.members, [tensor.nbytes / num] * num, row.name)
    return _one(swapping(tensor, context.groups.transport(row), split_dim, join_dim))


def _one(result: Callable[[], Tensor]) -> Pending:
    """One output, which is there when this returns."""
    return Pending(lambda: (result(),))


def exchange_counts(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Row n of an integer tensor goes to member n; out comes what the members sent here, in their order."""
    counts = first_tensor(row, inputs).contiguous()
    received = torch.empty_like(counts)
    context.links.pass_to_each(row.members, [counts.nbytes / len(row.members)] * len(row.members), row.name)
    work = torch.distributed.all_to_all_single(
        received, counts, group=context.groups.collective(row), async_op=True
    )

    return Pending.of([work], received)


def all_to_all(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Uneven exchange of the first dimension. Reads: the tensor, how many go to, and how many come from each member."""
    tensor, sent, received = (value for value in inputs if isinstance(value, Tensor))
    arriving = received.flatten().tolist()
    buffer = tensor.new_empty((sum(arriving), *tensor.shape[1:]))
    leaving = sent.flatten().tolist()
    row_bytes = tensor.nbytes / max(1, tensor.shape[0])
    context.links.pass_to_each(row.members, [row_bytes * count for count in leaving], row.name)
    work = torch.distributed.all_to_all_single(
        buffer,
        tensor.contiguous(),
        arriving,
        leaving,
        group=context.groups.collective(row),
        async_op=True,
    )

    return Pending.of([work], buffer)


HANDLERS: Handlers = {
    Kind.SEND: send,
    Kind.RECEIVE: receive,
    Kind.LOAD: load,
    Kind.STORE: store,
    Kind.COPY: copy,
}
