"""Which rank writes which box, whether boxes make whole tensors, what a rank reads of a checkpoint of any layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from meshwright.executor.checkpoint.index import StoredBox, StoredTensor, box_error
from meshwright.executor.checkpoint.tensor_file import DTYPE_NAMES, DTYPES
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, MeshwrightError, SpecError

NUM_SHOWN = 5  # names in a message
_log = logging.getLogger(__name__)

Box = tuple[str, tuple[int, ...], tuple[int, ...]]  # name, offsets, sizes
T = TypeVar("T")


def agreed(group: Any, work: Callable[[], T]) -> list[T]:
    """What `work` gives on every rank of a gloo group (None: one process alone), by rank.

    Raises:
        MeshwrightError: the first of our own errors of any rank, the same one on all of them.
        ExecutionError: `work` failed in another way; what and on which rank.
    """
    try:
        mine: tuple[Any, MeshwrightError | None, str] = work(), None, ""
    except MeshwrightError as error:
        mine = None, error, str(error)
    except Exception as error:
        _log.debug("a checkpoint failed on this rank", exc_info=True)
        mine = None, None, f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [mine]
    if group is not None:
        outcomes = [None] * dist.get_world_size(group)
        dist.all_gather_object(outcomes, mine, group=group)
    for _, ours, _ in outcomes:
        if ours is not None:
            raise ours
    for rank, (_, _, failure) in enumerate(outcomes):
        if failure:
            raise ExecutionError(
                f"the checkpoint failed on rank {rank}: {failure}",
                next="checkpoints that were there before are whole",
            )
    return [value for value, _, _ in outcomes]


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


def planned(pieces: Sequence[Piece], file: str) -> list[tuple[str, StoredTensor]]:
    """What a rank writes to its file: of every piece the name and the tensor, with this box alone.

    Raises ExecutionError for numbers that cannot be stored.
    """
    found = []
    for piece in pieces:
        if piece.tensor.dtype not in DTYPE_NAMES:
            raise ExecutionError(
                f"{piece.name} is {piece.tensor.dtype}",
                allowed=", ".join(str(dtype) for dtype in DTYPE_NAMES),
            )
        # a box that is all of its tensor has the tensor's own name in the file
        at = "" if piece.sizes == piece.whole else f"@{','.join(map(str, piece.offsets))}"
        box = StoredBox(file, piece.name + at, piece.offsets, piece.sizes)
        found.append((piece.name, StoredTensor(DTYPE_NAMES[piece.tensor.dtype], piece.whole, (box,))))
    return found


def whole_tensors(plans: Sequence[Sequence[tuple[str, StoredTensor]]]) -> dict[str, StoredTensor]:
    """The boxes of all ranks as tensors, by name. Raises ExecutionError where they are not all of one, or it twice."""
    parts: dict[str, list[StoredTensor]] = {}
    for name, part in (entry for plan in plans for entry in plan):
        parts.setdefault(name, []).append(part)
    found = {}
    for name, of_tensor in sorted(parts.items()):
        if len({(part.dtype, part.shape) for part in of_tensor}) > 1:
            shapes = sorted({str(list(part.shape)) for part in of_tensor})
            raise ExecutionError(f"ranks hold {name} in several shapes or dtypes: {shapes}")
        boxes = tuple(box for part in of_tensor for box in part.boxes)
        error = box_error(of_tensor[0].shape, [(box.offsets, box.sizes) for box in boxes])
        if error:
            raise ExecutionError(
                f"{name} cannot be saved: {error}", next="every number of it must be in a piece of some rank"
            )
        found[name] = replace(of_tensor[0], boxes=boxes)
    return found


def check_pieces(
    pieces: Sequence[Piece], stored: Mapping[str, StoredTensor], converts_dtype: bool
) -> set[str]:
    """The names of the pieces, all of which the checkpoint has, in their shapes and dtypes. Raises SpecError."""
    missing = sorted({piece.name for piece in pieces} - stored.keys())
    if missing:
        raise SpecError(
            f"the checkpoint lacks {_some(missing)}",
            allowed="a checkpoint of the same model and optimizer",
            next="`meshwright checkpoint inspect` lists what it has",
        )
    for piece in pieces:
        tensor, dtype = stored[piece.name], DTYPES[stored[piece.name].dtype]
        if tensor.shape != piece.whole:
            raise SpecError(
                f"{piece.name} is {list(tensor.shape)} in the checkpoint, {list(piece.whole)} in the model",
                allowed="a checkpoint of the same model",
            )
        if dtype != piece.tensor.dtype and not converts_dtype:
            raise SpecError(
                f"{piece.name} is {dtype} in the checkpoint, {piece.tensor.dtype} in the training",
                next="ask for the conversion (converts_dtype), or train in the checkpoint's dtype",
            )
    return {piece.name for piece in pieces}


def check_complete(wanted: Sequence[set[str]], stored: Mapping[str, StoredTensor]) -> None:
    """Raises SpecError where the checkpoint has tensors that no rank wants."""
    left = sorted(stored.keys() - set().union(*wanted))
    if left:
        raise SpecError(
            f"the checkpoint also has {_some(left)}, which the training does not know",
            allowed="a checkpoint of the same model and optimizer",
        )


@dataclass(frozen=True, eq=False)
class Read:
    """A part of a stored box, `lengths` from `offsets` of the whole tensor on, and where its numbers go."""

    box: StoredBox
    dtype: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    targets: tuple[Tensor, ...]

    @property
    def places(self) -> tuple[slice, ...]:
        """Of the part in the stored box."""
        return _slices(self.offsets, self.lengths, self.box.offsets)


def reads_of(pieces: Sequence[Piece], stored: Mapping[str, StoredTensor]) -> Iterator[Read]:
    """Every part of a stored box that pieces need; equal boxes of this rank are read once."""
    copies: dict[Box, list[Tensor]] = {}
    for piece in pieces:
        copies.setdefault(box_of(piece), []).append(piece.tensor.detach())
    for (name, offsets, sizes), tensors in copies.items():
        for box in stored[name].boxes:
            first = tuple(map(max, offsets, box.offsets))
            ends = (min(a + n, b + m) for a, n, b, m in zip(offsets, sizes, box.offsets, box.sizes))
            lengths = tuple(end - at for end, at in zip(ends, first))
            if all(length > 0 for length in lengths):
                places = _slices(first, lengths, offsets)
                targets = tuple(tensor[places] for tensor in tensors)
                yield Read(box, stored[name].dtype, first, lengths, targets)


def _slices(first: Sequence[int], lengths: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """A box of the whole tensor, counted from `origin`."""
    return tuple(slice(at - zero, at - zero + n) for at, n, zero in zip(first, lengths, origin))


def _some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
    return (
        f"{len(names)} tensors: {', '.join(names[:NUM_SHOWN])}{more}"
        if len(names) > 1
        else f"the tensor {names[0]}"
    )
