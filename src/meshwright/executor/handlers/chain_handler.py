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
    "COUNTS": exchange_counts,
}
