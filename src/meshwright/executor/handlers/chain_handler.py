"""Handlers of the exchanges between segments: gathers, scattered sums, sums and maxima of a group, rows for experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import all_to_all as exchange_uneven
from meshwright.executor.rank.exchange_handler import (
    exchange_counts,
    gather_along,
    scatter_along,
    swap_along,
)
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.executor.team.collective import combining


def all_gather(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The members' equal parts one behind the other along the dimension that is divided."""
    return gather_along(context, row, inputs[0], _dim(context, row))


def reduce_scatter(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """This member's part of the sum along the dimension that is divided."""
    return scatter_along(context, row, inputs[0], _dim(context, row))


def all_to_all(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Of equal parts along the dimension that is divided the n-th to member n; theirs here, in order."""
    dim = _dim(context, row)
    return swap_along(context, row, inputs[0], dim, dim)


def all_reduce(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The sum over the members. A term of a sum has no other reader: it is overwritten."""
    return _combined(context, row, inputs[0], is_maximum=False)


def maximum(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """The element-wise maximum over the members."""
    return _combined(context, row, inputs[0], is_maximum=True)


def exchange_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Rows to the devices of their experts, or back: rows [N, E], how many go to each member's experts, [P, X], and how many
    come from each."""
    rows_NE, leaving_PX, arriving_PX = inputs
    return exchange_uneven(context, row, (rows_NE, leaving_PX.sum(1), arriving_PX.sum(1)))


def gather_counts(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """How many rows every member has, [P, X] of each: those of the first one in front, [M P, X]."""
    return gather_along(context, row, inputs[0])


def gather_chosen(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Where everybody's tokens go, [T, F] of each: those of the first one in front."""
    return gather_along(context, row, inputs[0])


def gather_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """All members' rows [N, E], those of the first one in front; with how many there are of the own ones, [P, X], and of
    all, [M P, X]."""
    rows_NE, own_PX, all_PX = inputs
    num_members = len(row.members)
    to_each = own_PX.sum().repeat(num_members)
    return exchange_uneven(
        context, row, (rows_NE.repeat(num_members, 1), to_each, _of_members(all_PX, num_members))
    )


def scatter_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Of all members' rows the sums of the own ones, added in the order of the members; with how many there are of all,
    [M P, X], and of the own ones, [P, X]."""
    terms_NE, all_PX, own_PX = inputs
    num_members = len(row.members)
    from_each = own_PX.sum().repeat(num_members)
    sent = exchange_uneven(context, row, (terms_NE, _of_members(all_PX, num_members), from_each))

    def wait() -> Sequence[Any]:
        (terms,) = sent.wait()
        return (terms.view(num_members, -1, terms.shape[1]).sum(0),)

    return Pending(wait)


def _of_members(counts_PX: Tensor, num_members: int) -> Tensor:
    """Rows of every member, [M]."""
    return counts_PX.view(num_members, -1).sum(1)


def _combined(context: Context, row: Row, given: Tensor, *, is_maximum: bool) -> Pending:
    tensor = given.contiguous()
    context.links.pass_ring(row.members, tensor.nbytes, 2, row.name)
    result = combining(tensor, context.groups.transport(row), is_maximum=is_maximum)
    return Pending(lambda: (result(),))


def _dim(context: Context, row: Row) -> int:
    """Along which what the row writes is divided."""
    written = next(names for names in row.writes if names)
    dim: int = context.training.segments[row.stage].dim(written[0].kind)
    return dim


HANDLERS: Handlers = {
    "ALL_GATHER": all_gather,
    "REDUCE_SCATTER": reduce_scatter,
    "ALL_TO_ALL": all_to_all,
    "ALL_REDUCE": all_reduce,
    "MAXIMUM": maximum,
    "ROUTE": exchange_rows,
    "CHOICES": exchange_rows,
    "COUNTS": exchange_counts,
    "GATHER_COUNTS": gather_counts,
    "GATHER_CHOSEN": gather_chosen,
    "GATHER_ROWS": gather_rows,
    "GATHER_CHOICES": gather_rows,
    "SCATTER_ROWS": scatter_rows,
}
