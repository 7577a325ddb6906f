"""Checkpoints of a training under way: saving beside it, loading before it; what the worker and `api.train` call.

A folder of checkpoints holds ``step-20/``, ``step-40/``, ... and ``latest``, a small file that names the one to go on from;
where the training is evaluated also ``best``, which names the one with the least held-out loss:

    step-40/checkpoint.json          facts, tensors and their boxes, files and their SHA-256 (`CheckpointIndex`)
    step-40/tensors-0.safetensors    what rank 0 wrote, and so on
    step-40/plan.toml                files that the caller gave

Everything is written into ``step-40.partial``, flushed to the disk, and renamed. Nothing is ever unpickled.

How a training uses it, in the parent (no torch needed for the first line):

    found = latest_checkpoint(folder)                    # executor.checkpoint_folder; puts a folder in order after a crash
    info = read_index(found).info                        # executor.checkpoint_index: step, samples, tokens, seed, loss
    Training(..., first_step=info.step, seed=info.seed)  # the next step is number `info.step`
    kept = Checkpoints(folder, every=20, keep=3)
    Job.of(program, iterations, training=..., checkpoints=CheckpointConfig(kept, resume_from=str(found)))
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_by_plan
from torch.distributed.checkpoint.state_dict_saver import save as save_by_plan

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.index import CheckpointIndex, CheckpointInfo, read_index
from meshwright.executor.checkpoint.planner import (
    Box,
    PieceLoadPlanner,
    PieceSavePlanner,
    RankFacts,
    box_of,
    writers,
)
from meshwright.executor.checkpoint.reader import FolderReader
from meshwright.executor.checkpoint.storage import FolderWriter
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, MeshwrightError

BEAT_S = 0.5  # between two looks at a save that is waited for


class RankCheckpoints:
    """Saves and loads what one rank trains; every rank of the job has one and calls the same methods at the same steps.

    ``pieces``: gives the pieces as they are now; which boxes they are never changes. ``group``: a gloo group of all ranks
    that nothing else uses; None: one process alone. ``beat``: called while the rank waits, with bytes written or read so
    far, so that a watchdog sees it move.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        pieces: Callable[[], Sequence[Piece]],
        group: Any = None,
        beat: Callable[[int], None] | None = None,
    ) -> None:
        self.config, self._pieces, self._group, self._beat = config, pieces, group, beat
        self._num_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None
        self._own = self._share()
        self.saved_step = -1  # the last one that was begun

    def _share(self) -> set[Box]:
        """Boxes that this rank writes."""
        sizes = {box_of(p): p.tensor.nbytes for p in self._pieces() if p.tensor.numel()}
        if self._group is None:
            return set(sizes)
        of_ranks: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(of_ranks, sizes, group=self._group)
        rank = dist.get_rank(self._group)
        return {box for box, writer in writers(of_ranks).items() if writer == rank}

    def save(self, info: CheckpointInfo, facts: RankFacts, is_best: bool = False) -> None:
        """Copy what this rank writes, then write it beside the training. Waits for the save before.

        ``info`` is the same on all ranks; loss and digest are put together from `facts` of all. ``is_best``: no checkpoint
        before it was as good.

        Raises:
            ExecutionError: the save before has failed.
        """
        self.wait()
        copies = {}
        for piece in self._pieces():
            box = box_of(piece)
            if box in self._own and box not in copies:
                copies[box] = replace(piece, tensor=piece.tensor.detach().to("cpu", copy=True))
        if copies.keys() != self._own:
            raise ExecutionError("this rank holds other boxes than when the training began")
        planner = PieceSavePlanner(list(copies.values()), facts, asdict(info))
        kept = self.config.kept
        writer = FolderWriter(
            Path(kept.folder), info.step, self.config.files, kept.keep, self._count, is_best
        )
        self.saved_step = info.step
        self._under_way = self._thread.submit(self._write, planner, writer)

    def _write(self, planner: PieceSavePlanner, writer: FolderWriter) -> None:
        """In the thread, of all ranks together. What a failure leaves is removed: the disk may be full of it."""
        try:
            with _agreed(), _alone(self._group) as options:
                save_by_plan({}, storage_writer=writer, planner=planner, **options)
        except MeshwrightError:
            writer.abandon()
            raise

    def wait(self) -> None:
        """Until nothing is being written.

        Raises:
            ExecutionError: the save has failed.
        """
        if self._under_way is None:
            return
        while not self._under_way.done():
            concurrent.futures.wait([self._under_way], BEAT_S)
            if self._beat is not None:
                self._beat(self._num_bytes)
        under_way, self._under_way = self._under_way, None
        under_way.result()

    def close(self) -> None:
        """Wait, and end the thread. Raises ExecutionError as `wait`."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def load(self, may_lack: Callable[[str], bool] = lambda _: False) -> CheckpointInfo:
        """Fill the pieces from `config.resume_from`; those that it lacks, and by their names may lack, stay as they are.

        Raises:
            SpecError: it is of another model or optimizer, or no checkpoint.
            ExecutionError: it cannot be read.
        """
        checkpoint = Path(self.config.resume_from)
        index = read_index(checkpoint)
        wanted = [p for p in self._pieces() if p.name in index.tensors or not may_lack(p.name)]
        load_pieces(checkpoint, index, wanted, self._group, self._count)
        return index.info

    def _count(self, num_bytes: int) -> None:
        """Bytes were written or read, by whatever thread."""
        self._num_bytes += num_bytes
        if self._beat is not None:
            self._beat(self._num_bytes)


def load_pieces(
    checkpoint: Path,
    index: CheckpointIndex,
    pieces: Sequence[Piece],
    group: Any = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Fill pieces from a checkpoint of any layout; of its files only the boxes that they need are read. The pieces of all
    ranks must use every tensor of the checkpoint.

    Raises:
        SpecError: a tensor is missing, left over, or of another shape or dtype.
        ExecutionError: a file is missing or broken.
    """
    planner = PieceLoadPlanner([p for p in pieces if p.tensor.numel()])
    with _agreed(), _alone(group) as options:
        load_by_plan({}, storage_reader=FolderReader(checkpoint, index, progress), planner=planner, **options)


@contextlib.contextmanager
def _alone(group: Any) -> Iterator[dict[str, Any]]:
    """torch's words for a group, or for one process, about which it would warn."""
    if group is not None:
        yield {"process_group": group}
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield {"no_dist": True}


@contextlib.contextmanager
def _agreed() -> Iterator[None]:
    """The first of our own errors among those that torch gathered from the ranks; the same one on all of them."""
    try:
        yield
    except CheckpointException as error:
        causes = [cause for _, (cause, _) in sorted(error.failures.items())]
        ours = [cause for cause in causes if isinstance(cause, MeshwrightError)]
        if ours:
            raise ours[0] from None
        rank, (cause, _) = min(error.failures.items())
        if not isinstance(cause, Exception):
            raise cause from None
        raise ExecutionError(
            f"the checkpoint failed on rank {rank}: {type(cause).__name__}: {cause}",
            next="checkpoints that were there before are whole",
        ) from error
