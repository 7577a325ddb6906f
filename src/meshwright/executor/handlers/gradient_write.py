"""What computes write of gradients: groups have them, and the buffers in which they are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Row, ValueName
from meshwright.ir.core_vocabulary import GRADIENT_BUFFER, GRADIENT_KINDS


def writes_gradients(row: Row) -> bool:
    """Does a row add to gradients of parameters?"""
    return any(names and names[0].kind in GRADIENT_KINDS for names in row.writes)


def is_of_groups(names: Sequence[ValueName] | None) -> bool:
    """Does a group have what a pattern writes?"""
    return bool(names) and names[0].kind in (*GRADIENT_KINDS, GRADIENT_BUFFER.name)  # type: ignore[index]


def of_groups(context: Context, names: Sequence[ValueName], is_many: bool) -> Any:
    """What stands for gradients, and for their buffers: the groups that have them; of a segment without parameters none."""
    groups = context.training.groups
    if not names:
        return () if is_many else None
    if names[0].kind == GRADIENT_BUFFER.name:
        return (None,) * len(names) if is_many else None
    found = tuple(groups.get(name.index) for name in names)
    return found if is_many else found[0]


def gradient_writes(context: Context, row: Row) -> tuple[Any, ...]:
    """All outputs of a row that writes nothing but gradients."""
    return tuple(
        of_groups(context, names or (), many) for names, many in zip(row.writes, row.is_many, strict=True)
    )
