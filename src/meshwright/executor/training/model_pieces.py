"""The pieces of a training: its parameters and its optimizer's state on one rank, as boxes of the whole model's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from meshwright.executor.layout.piece import Piece
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.state.group_pieces import STEP_COUNT, group_pieces
from meshwright.executor.state.group_state import GroupState
from meshwright.executor.training.rank_training import TrainingState


def pieces_of(state: TrainingState) -> list[Piece]:
    """Everything that must be saved of a training, as views of what is trained: parameters (or master copies), moments, and
    the count of steps. Of a shard, its boxes."""
    shard = state.tensor_shard if state.shard is None else state.shard.tables
    return [piece for number in sorted(state.groups) for piece in _of_group(state.groups[number], shard)]


def loaded(state: TrainingState) -> None:
    """The pieces have been written from outside: what is derived from them is made anew. All ranks call it."""
    with torch.no_grad():
        for number in sorted(state.groups):
            state.groups[number].loaded()


def _of_group(group: GroupState, shard: TensorShard) -> Iterator[Piece]:
    yield from group_pieces(group, shard, "parameter")
    states = group.moments.states()
    for key in states[0] if states else ():
        if key == "step":
            for kept in states:
                yield Piece(STEP_COUNT, (), (), kept[key])
        else:
            yield from group_pieces(group, shard, key)
