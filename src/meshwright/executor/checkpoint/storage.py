"""Writes the boxes of all ranks as one checkpoint: safetensors files and a JSON index; nothing is pickled to disk."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from meshwright.executor.checkpoint.folder import PARTIAL, begin, free_bytes, publish, step_name
from meshwright.executor.checkpoint.index import INDEX_FILE, CheckpointIndex, CheckpointInfo, StoredFile
from meshwright.executor.checkpoint.planner import RankFacts, agreed, planned, whole_tensors
from meshwright.executor.checkpoint.tensor_file import bytes_of, header_of
from meshwright.executor.file.new_file import NO_SPACE, NewFile, flush_folder, remove, write_text
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, MeshwrightError

TENSOR_FILE = "tensors-{rank}.safetensors"

Progress = Callable[[int], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """How many checkpoints stay."""

    keep: int = 3
    keep_every: int = 0


def save_pieces(
    pieces: Sequence[Piece],
    facts: RankFacts,
    info: CheckpointInfo,
    folder: Path,
    files: Mapping[str, str],
    retention: Retention,
    group: Any = None,
    progress: Progress | None = None,
) -> None:
    """Write a checkpoint and publish it; every rank calls it with the pieces that it alone writes.

    Args:
        facts: of this rank; loss and digest of `info` are put together from those of all.
        files: texts that are kept beside the tensors.
        group: a gloo group of all ranks; None: one process alone.
        progress: called with bytes that were written.

    Raises:
        ExecutionError: what ranks hold is no whole tensor, it does not fit on the disk, a rank failed. What was written
            so far is removed: the disk may be full of it.
    """
    rank = 0 if group is None else dist.get_rank(group)
    name = TENSOR_FILE.format(rank=rank)
    try:
        plans, told = zip(*agreed(group, lambda: (planned(pieces, name), facts)), strict=True)
        tensors = whole_tensors(plans)
        needed = sum(tensor.size_bytes for tensor in tensors.values())
        with_facts = _with_facts(info, told)
        partial = agreed(group, lambda: _begin(folder, info.step, needed) if rank == 0 else folder)[0]
        keys = [tensor.boxes[0].key for _, tensor in plans[rank]]

        def write() -> dict[str, StoredFile]:
            with _telling_no_space(folder, needed):
                return _write(partial / name, keys, pieces, progress) if pieces else {}

        def finish(written: Mapping[str, StoredFile]) -> None:
            with _telling_no_space(folder, needed):
                _finish(partial, CheckpointIndex(with_facts, tensors, written), files, retention)

        of_ranks = agreed(group, write)
        written = {file: stored for each in of_ranks for file, stored in each.items()}
        agreed(group, lambda: None if rank else finish(written))
    except MeshwrightError:
        if rank == 0:
            _abandon(folder / (step_name(info.step) + PARTIAL))
        raise


def _with_facts(info: CheckpointInfo, told: Sequence[RankFacts]) -> CheckpointInfo:
    """The sums of what ranks know."""
    loss = sum(one.loss for one in told)
    digest = next((one.data_digest for one in told if one.data_digest), "")
    return replace(info, loss=loss if math.isfinite(loss) else None, data_digest=digest, num_ranks=len(told))


def _begin(folder: Path, step: int, needed: int) -> Path:
    """The place for a new checkpoint. Raises ExecutionError where it does not fit on the disk."""
    free = free_bytes(folder)
    if needed > free:
        raise no_space(folder, needed, free)
    return begin(folder, step)


def _write(
    path: Path, keys: Sequence[str], pieces: Sequence[Piece], progress: Progress | None
) -> dict[str, StoredFile]:
    """This rank's boxes, in one file."""
    with NewFile(path, progress) as file:
        file.write(header_of([(key, p.tensor.dtype, p.sizes) for key, p in zip(keys, pieces, strict=True)]))
        for piece in pieces:
            file.write(bytes_of(piece.tensor))
    return {path.name: StoredFile(file.size_bytes, file.sha256)}


def _finish(partial: Path, index: CheckpointIndex, files: Mapping[str, str], retention: Retention) -> None:
    """When all ranks have written: the texts and the index, then the folder gets its name.

    Raises ExecutionError where a rank wrote what cannot be seen from here.
    """
    written = dict(index.files)
    for name, stored in written.items():
        path = partial / name
        if not path.is_file() or path.stat().st_size != stored.size_bytes:
            raise ExecutionError(
                f"{path} was written by a rank and is not here",
                next="give a folder of checkpoints that all hosts share",
            )
    for name, text in files.items():
        kept = write_text(partial / name, text)
        written[name] = StoredFile(kept.size_bytes, kept.sha256)
    write_text(partial / INDEX_FILE, replace(index, files=written).text())
    flush_folder(partial)
    publish(partial, **asdict(retention))


def _abandon(partial: Path) -> None:
    """After a failure, when all ranks have ended."""
    if partial.exists():
        try:
            remove(partial)
        except OSError as error:  # the failure itself is what is told
            _log.warning("what a failed checkpoint has left cannot be removed: %s", error)


@contextlib.contextmanager
def _telling_no_space(folder: Path, needed_bytes: int) -> Iterator[None]:
    """A full disk, in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_space(folder, needed_bytes, free_bytes(folder)) from error
        raise


def no_space(folder: Path, needed_bytes: int, free: int) -> ExecutionError:
    """The disk is full."""
    return ExecutionError(
        f"no space for a checkpoint in {folder}: it needs {needed_bytes / 1e9:.3f} GB ({needed_bytes} bytes), "
        f"{free / 1e9:.3f} GB ({free} bytes) are free; those that were there are whole",
        next="free some space, keep fewer (--keep), or give another folder",
    )
