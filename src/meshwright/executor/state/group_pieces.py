"""What is trained of one parameter group on a rank, its gradient or a moment, as boxes of the whole model's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch import Tensor

from meshwright.executor.layout.flat_layout import boxes
from meshwright.executor.layout.piece import Piece
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.state.group_state import GroupState

STEP_COUNT = "step_count"  # steps that the optimizer has taken: one number for all parameters


def group_pieces(group: GroupState, shard: TensorShard, which: str) -> list[Piece]:
    """The trained values ("parameter"), their gradient ("gradient"), or a moment of the optimizer ("exp_avg"). Views, except
    of gradients that are not of the trained format."""
    found = []
    for one, source in zip(group.trained, _sources(group, which), strict=True):
        name, segment = one.segment.name, one.segment
        flat, place = source.reshape(-1), 0
        label = name if which in ("parameter", "gradient") else f"{which}/{name}"
        local = group.layout.shapes[name]
        whole = shard.whole_shape(name, local)
        for box in boxes(local, segment.first, segment.length):
            size = prod(box.sizes)
            view = flat[place : place + size].view(box.sizes)
            place += size
            for inside, offsets in shard.placed(name, whole, box):
                cut = tuple(slice(at, at + n) for at, n in zip(inside.offsets, inside.sizes, strict=True))
                found.append(Piece(label, whole, offsets, view[cut]))
    return found


def saved_pieces(group: GroupState, shard: TensorShard) -> Iterator[Piece]:
    """Everything that must be saved of a group: parameters (or master copies), moments, and the count of steps."""
    yield from group_pieces(group, shard, "parameter")
    states = group.moments.states()
    for key in states[0] if states else ():
        if key == "step":
            for kept in states:
                yield Piece(STEP_COUNT, (), (), kept[key])
        else:
            yield from group_pieces(group, shard, key)


def _sources(group: GroupState, which: str) -> list[Tensor]:
    if which == "parameter":
        return [one.tensor.detach() for one in group.trained]
    if which == "gradient":
        return group.gradients()
    return [kept[which] for kept in group.moments.states()]
