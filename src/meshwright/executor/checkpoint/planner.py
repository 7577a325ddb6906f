"""What torch.distributed.checkpoint saves and loads: pieces, whatever layout they come from, by planners of our own."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from meshwright.executor.checkpoint.index import box_error
from meshwright.executor.checkpoint.storage import DTYPE_NAMES
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, SpecError

NUM_SHOWN = 5  # names in a message

Box = tuple[str, tuple[int, ...], tuple[int, ...]]  # name, offsets, sizes


def box_of(piece: Piece) -> Box:
    """What tells a piece from all others; ranks that hold copies have the same."""
    return piece.name, piece.offsets, piece.sizes


def writers(boxes_of_ranks: Sequence[Mapping[Box, int]]) -> dict[Box, int]:
    """Which rank writes each box, given the bytes of all boxes of every rank: once each, spread over those who hold it.

    The largest first, each to the rank that has least to write; the same on every rank that asks.
    """
    holders: dict[Box, list[int]] = {}
    sizes: dict[Box, int] = {}
    for rank, boxes in enumerate(boxes_of_ranks):
        for box, size in boxes.items():
            holders.setdefault(box, []).append(rank)
            sizes[box] = size
    loads = [0] * len(boxes_of_ranks)
    chosen = {}
    for box in sorted(holders, key=lambda one: (-sizes[one], one)):
        rank = min(holders[box], key=lambda one: (loads[one], one))
        chosen[box] = rank
        loads[rank] += sizes[box]
    return chosen


@dataclass(frozen=True)
class RankFacts:
    """What one rank knows of the training: its share of the last loss, the digest of the data where it reads them."""

    loss: float = 0.0
    data_digest: str = ""


@dataclass(eq=False)
class PieceSavePlanner(SavePlanner):
    """Plans the boxes of `pieces`, each of which this rank alone writes. ``info``: fields of `CheckpointInfo`."""

    pieces: Sequence[Piece]
    facts: RankFacts = field(default_factory=RankFacts)
    info: Mapping[str, Any] = field(default_factory=dict)

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """The pieces are all there is."""
        self._tensors = {MetadataIndex(p.name, p.offsets): p.tensor for p in self.pieces}

    def create_local_plan(self) -> SavePlan:
        """One item a piece. Raises ExecutionError for numbers that cannot be stored."""
        return SavePlan([_write_item(piece) for piece in self.pieces], planner_data=self.facts)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """On the coordinator: all tensors, each checked to be whole, and the sums of what ranks know."""
        items: dict[str, list[WriteItem]] = {}
        for plan in all_plans:
            for item in plan.items:
                items.setdefault(item.index.fqn, []).append(item)
        tensors = {name: _whole(name, found) for name, found in sorted(items.items())}
        facts: list[RankFacts] = [plan.planner_data for plan in all_plans]
        loss = sum(one.loss for one in facts)
        digests = [one.data_digest for one in facts if one.data_digest]
        info = {
            **self.info,
            "loss": loss if math.isfinite(loss) else None,
            "data_digest": digests[0] if digests else "",
            "num_ranks": len(all_plans),
        }
        return all_plans, Metadata(dict(tensors), planner_data=info)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """As it is."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """The numbers of a box."""
        return self._tensors[write_item.index]


def _write_item(piece: Piece) -> WriteItem:
    if piece.tensor.dtype not in DTYPE_NAMES:
        raise ExecutionError(
            f"{piece.name} is {piece.tensor.dtype}", allowed=", ".join(str(dtype) for dtype in DTYPE_NAMES)
        )
    chunk = ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
    data = TensorWriteData(chunk, TensorProperties(piece.tensor.dtype), torch.Size(piece.whole))
    return WriteItem(MetadataIndex(piece.name, piece.offsets), WriteItemType.SHARD, tensor_data=data)


def _whole(name: str, items: Sequence[WriteItem]) -> TensorStorageMetadata:
    """All boxes of a tensor as one. Raises ExecutionError where they are not all of it, or it more than once."""
    boxes = [item.tensor_data for item in items if item.tensor_data is not None]
    first = boxes[0]
    if len({(box.properties.dtype, box.size) for box in boxes}) > 1:
        raise ExecutionError(
            f"ranks hold {name} in several shapes or dtypes: {sorted({str(b.size) for b in boxes})}"
        )
    error = box_error(tuple(first.size), [(tuple(b.chunk.offsets), tuple(b.chunk.sizes)) for b in boxes])
    if error:
        raise ExecutionError(
            f"{name} cannot be saved: {error}", next="every number of it must be in a piece of some rank"
        )
    return TensorStorageMetadata(first.properties, first.size, [box.chunk for box in boxes])


@dataclass(eq=False)
class PieceLoadPlanner(LoadPlanner):
    """Fills `pieces` from a checkpoint of any layout, of which nothing may be left over."""

    pieces: Sequence[Piece]

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Equal boxes of this rank are read once."""
        assert metadata is not None, "the reader has the index"
        self._stored: dict[str, Any] = dict(metadata.state_dict_metadata)
        self._targets: dict[str, dict[Box, list[Tensor]]] = {}
        for piece in self.pieces:
            self._targets.setdefault(piece.name, {}).setdefault(box_of(piece), []).append(piece.tensor)

    def create_local_plan(self) -> LoadPlan:
        """What this rank reads.

        Raises:
            SpecError: tensors are missing, or have other shapes or dtypes.
        """
        self._check()
        items: list[ReadItem] = []
        for name, boxes in self._targets.items():
            chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for _, at, sizes in boxes]
            items += create_read_items_for_chunk_list(name, self._stored[name], chunks)
        return LoadPlan(items)

    def _check(self) -> None:
        missing = sorted(self._targets.keys() - self._stored.keys())
        if missing:
            raise SpecError(
                f"the checkpoint lacks {_some(missing)}",
                allowed="a checkpoint of the same model and optimizer",
                next="`meshwright checkpoint inspect` lists what it has",
            )
        for piece in self.pieces:
            stored = self._stored[piece.name]
            if tuple(stored.size) != piece.whole:
                raise SpecError(
                    f"{piece.name} is {list(stored.size)} in the checkpoint, {list(piece.whole)} in the model",
                    allowed="a checkpoint of the same model",
                )
            if stored.properties.dtype != piece.tensor.dtype:
                raise SpecError(
                    f"{piece.name} is {stored.properties.dtype} in the checkpoint, {piece.tensor.dtype} in the training",
                    next="train in the checkpoint's dtype",
                )

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator. Raises SpecError where the checkpoint has tensors that no rank wants."""
        wanted = {item.dest_index.fqn for plan in global_plan for item in plan.items}
        left = sorted(self._stored.keys() - wanted)
        if left:
            raise SpecError(
                f"the checkpoint also has {_some(left)}, which the training does not know",
                allowed="a checkpoint of the same model and optimizer",
            )
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Only tensors are planned."""
        raise ExecutionError(f"{read_item.dest_index.fqn} is no tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The part of a piece that a read fills."""
        return _part(self._copies(read_item)[0], read_item)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Other pieces of the same box get the same numbers."""
        with torch.no_grad():
            for other in self._copies(read_item)[1:]:
                _part(other, read_item).copy_(tensor)

    def _copies(self, item: ReadItem) -> list[Tensor]:
        boxes = list(self._targets[item.dest_index.fqn].values())
        assert item.dest_index.index is not None, "reads are planned with the number of their box"
        return boxes[item.dest_index.index]


def _part(tensor: Tensor, item: ReadItem) -> Tensor:
    begins_ends = zip(item.dest_offsets, item.lengths)
    return tensor.detach()[tuple(slice(at, at + n) for at, n in begins_ends)]


def _some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
    return (
        f"{len(names)} tensors: {', '.join(names[:NUM_SHOWN])}{more}"
        if len(names) > 1
        else f"the tensor {names[0]}"
    )
