"""Handlers of the optimizer's step: STEP, and where it clips NORM and REDUCE_NORM, where it does not wait VALIDATE; where it
corrects routers COUNT_TOKENS and REDUCE_TOKENS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meshwright.executor.handlers.vocabulary_handler import writes_kind
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row, reads_of_kind
from meshwright.ir.core_vocabulary import (
    ALL_EXPERT_TOKENS,
    EXPERT_TOKENS,
    GLOBAL_NORM,
    SQUARED_NORM,
    STEP_COPY,
)


def step(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The optimizer's step on the groups that the row writes, and the end of their gradients. Routers are corrected
    whether or not gradients are numbers: choices were counted."""
    state = context.training
    norm = _norm(row, inputs)
    for kind in (ALL_EXPERT_TOKENS, EXPERT_TOKENS):
        for _, counts_LX in reads_of_kind(row, inputs, kind.name):
            state.corrections.correct(_stepped(state.groups, row), counts_LX)
    keeps = writes_kind(row, STEP_COPY.name)
    copies = {}
    for g in _stepped(state.groups, row):
        group = state.groups[g]
        state.finish_gradients(g)
        if keeps:
            copies[g] = group.step.copy()
        if norm is None or math.isfinite(norm):
            group.step.run(norm, state.learning_rate, clips=norm is not None)
            group.publish()
        else:
            state.num_undone += 1
        if not keeps:
            group.end()
    return row.outputs(lambda name: (copies if name.kind == STEP_COPY.name else state.groups).get(name.index))


def _stepped(groups: Mapping[int, Any], row: Row) -> list[int]:
    """Groups with parameters here that a row writes."""
    written = {name.index for names in row.writes for name in names or () if name.kind == "parameter"}
    return sorted(written & groups.keys())


def _norm(row: Row, inputs: Sequence[Any]) -> float | None:
    """The norm of all gradients, where a row knows it."""
    found = [
        value for kind in (GLOBAL_NORM, SQUARED_NORM) for _, value in reads_of_kind(row, inputs, kind.name)
    ]
    return float(found[0].sqrt()) if found else None


def count_tokens(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Tokens of every expert of the model, of routers whose gradients the row reads."""
    read = {name.index for names in row.reads for name in names or ()}
    return (context.training.corrections.counted(read, context.device),)


def squared_norm(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Sum of squares of the gradients that the row reads, a float64 scalar."""
    state = context.training
    read = {name.index for names in row.reads for name in names or ()}
    total = torch.zeros((), dtype=torch.float64, device=context.device)
    for g in sorted(read & state.groups.keys()):
        total += state.squared_norm_of(g)
    return (total,)


def validate(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Undo a step that was taken before the norm was known, where the norm forbids it; take the clipped one instead, or
    none where the gradients are no numbers. The end of the gradients.
    """
    state, norm = context.training, _norm(row, inputs)
    assert norm is not None, "a VALIDATE reads the norm"
    copies = {
        name.index: value
        for names, values in zip(row.reads, inputs)
        for name, value in zip(names or (), values if isinstance(values, tuple) else (values,))
        if name.kind == STEP_COPY.name
    }
    for g in _stepped(state.groups, row):
        group = state.groups[g]
        step = group.step
        if not math.isfinite(norm) or step.exceeds(norm):
            step.put_back(copies[g])
            state.num_undone += 1
            if math.isfinite(norm):
                step.run(norm, state.learning_rate)
            group.publish()
        group.end()
    return row.outputs(lambda name: state.groups.get(name.index))


HANDLERS: Handlers = {
    "STEP": step,
    "NORM": squared_norm,
    "REDUCE_NORM": all_reduce,
    "VALIDATE": validate,
    "COUNT_TOKENS": count_tokens,
    "REDUCE_TOKENS": all_reduce,
}
