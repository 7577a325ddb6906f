"""Checkpoints of a training under way: saving beside it, loading before it; what the worker and `api.train` call.

A folder of checkpoints holds ``step-20/``, ``step-40/``, ... and ``latest``, a small file that names the one to go on from:

    step-40/checkpoint.json          facts, tensors and their boxes, files and their SHA-256 (`CheckpointIndex`)
    step-40/tensors-0.safetensors    what rank 0 wrote, and so on
    step-40/plan.toml                files that the caller gave

Everything is written into ``step-40.partial``, flushed to the disk, and renamed. Nothing is ever unpickled.

How a training uses it, in the parent (no torch needed for the first line):

    found = latest_checkpoint(folder)                    # executor.checkpoint_folder; puts a folder in order after a crash
    info = read_index(found).info                        # executor.checkpoint_index: step, samples, tokens, seed, loss
    Training(..., first_step=info.step, seed=info.seed)  # the next step is number `info.step`
    Job.of(program, iterations, training=..., checkpoints=CheckpointConfig(folder, every=20, keep=3, resume_from=str(found)))
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_by_plan
from torch.distributed.checkpoint.state_dict_saver import save as save_by_plan

from meshwright.executor.checkpoint.folder import nearest
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
from meshwright.executor.checkpoint.resumed_training import ResumedTraining
from meshwright.executor.checkpoint.storage import FolderWriter, Retention
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, MeshwrightError, SpecError
from meshwright.specs.model.dimension import model_differences
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.slot import Reference

BEAT_S = 0.5  # between two looks at a save that is waited for
SHOWN_FIELDS = 4  # in which two models differ
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointConfig:
    """What a job does about checkpoints; the field ``checkpoints`` of `Job`.

    Args:
        folder: where checkpoints are kept; made where it is missing. All ranks must see the same one.
        every: steps between two; 0: only after the last iteration.
        keep: how many of the last are kept.
        keep_every: a step that is a multiple of it is kept for ever; 0: none.
        resume_from: the folder of one checkpoint ("runs/step-40") that is loaded before the first iteration, whatever
            layout wrote it; empty: none. `TrainingConfig.first_step` must be its step.
        converts_dtype: load numbers of another dtype than the training's; otherwise they are refused.
        saves_last: also save after the last iteration, interrupted or not.
        files: texts that are kept beside the tensors, by file name, such as {"plan.toml": ...}.
        accepts_other_data: go on from `resume_from` on other text, or with another tokenizer; otherwise they are refused.
    """

    folder: str
    every: int = 0
    keep: int = 3
    keep_every: int = 0
    resume_from: str = ""
    converts_dtype: bool = False
    saves_last: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    accepts_other_data: bool = False

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1 or self.keep_every < 0:
            raise ExecutionError(
                f"a checkpoint every {self.every} steps, of which {self.keep} and every {self.keep_every}th are kept",
                allowed="every 0 steps (only the last) or more, at least 1 kept",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file; paths are absolute, since whoever reads it may work elsewhere."""
        paths = {
            key: os.path.abspath(path) for key in ("folder", "resume_from") if (path := getattr(self, key))
        }
        return {**asdict(self), **paths}

    def is_due(self, step: int) -> bool:
        """Is a checkpoint made when `step` steps are done?"""
        return self.every > 0 and step % self.every == 0

    def check(self, training: ResumedTraining) -> None:
        """Before any process starts: can checkpoints be kept there, and can this training go on from the one that is named?

        Raises:
            SpecError: nothing can be written there; or the checkpoint is none, of another model, optimizer or seed, or the
                training does not begin at its step.
        """
        above = nearest(Path(self.folder))
        if not above.is_dir() or not os.access(above, os.W_OK):
            wrong = "cannot be written to" if above.is_dir() else "is a file"
            raise SpecError(
                f"checkpoints cannot be kept in {self.folder}: {above} {wrong}", allowed="a folder of yours"
            )
        if not self.resume_from:
            return
        info = read_index(self.resume_from).info
        for what, there, here in (
            ("model", *_models(info, training.model)),
            (
                "optimizer",
                _rule_name(info.training["optimizer"]["name"]),
                _rule_name(training.optimizer.name),
            ),
            ("seed", info.seed, training.seed),
            ("step", info.step, training.first_step),
        ):
            if there is not None and there != here:
                raise SpecError(
                    f"{self.resume_from} has the {what} {there}, the training {here}",
                    allowed="to go on with the same model, optimizer and seed, from the checkpoint's step",
                    next="`meshwright checkpoint inspect` shows what it is of",
                )
        _check_frozen(info, training)

    def check_data(self, training: ResumedTraining, name: str, warns: bool = True) -> None:
        """Text may be changed on the way, and seldom is on purpose: the samples that were counted are of other text, and
        with another tokenizer no token means what it did.

        Args:
            training: prepared. name: of its data, as the user gave it.
            warns: of other data that are accepted, and of sequences of another length; one process of a job does.

        Raises:
            SpecError: the data are others, and not accepted.
        """
        if not self.resume_from:
            return
        info = read_index(self.resume_from).info
        is_other = bool(info.data_digest) and info.data_digest != training.data_digest()
        if is_other and not self.accepts_other_data:
            raise SpecError(
                f"{self.resume_from} was trained on other text than {name}, or with another tokenizer",
                allowed="the same as before",
                next=f"--other-data goes on with {name} nevertheless, at sample {info.samples:,}",
            )
        length = info.training.get("sequence_length", training.sequence_length)
        if is_other and warns:
            _log.warning("%s goes on with other data, %s, at sample %d", self.resume_from, name, info.samples)
        if length != training.sequence_length and warns:
            _log.warning(
                "%s was trained on sequences of %d tokens, this plan's have %d: the order of the text is another from "
                "here on, some of it comes again and some later",
                self.resume_from, length, training.sequence_length,
            )  # fmt: skip


def _check_frozen(info: CheckpointInfo, training: ResumedTraining) -> None:
    """What is frozen is in no checkpoint, so it must come from where it came from before.

    Raises:
        SpecError: it would come from another folder, or be drawn by another seed.
    """
    if not training.model.is_adapted:
        return
    before = (_place(info.training.get("initial", "")), info.training.get("seed", training.seed))
    now = (_place(training.initial), training.seed)
    if before[0] != now[0] or (not now[0] and before[1] != now[1]):
        raise SpecError(
            f"the frozen parameters of this checkpoint are of {before[0] or f'seed {before[1]}'}, those of the job of "
            f"{now[0] or f'seed {now[1]}'}",
            allowed="the same source as before",
            next=f"train with --from {before[0]}" if before[0] else f"train with --seed {before[1]}",
        )


def _place(folder: str) -> str:
    return str(Path(folder).resolve()) if folder else ""


def _models(info: CheckpointInfo, here: ModelSpec) -> tuple[str | None, str]:
    """The models of a checkpoint (None: not known) and of a training in words, which are equal where the models are."""
    fields = info.training.get("model")
    there = None if fields is None else ModelSpec.from_dict(fields)
    if there is None or there.digest == here.digest:
        return (None if there is None else here.digest), here.digest
    shown = list(model_differences(there, here).items())[:SHOWN_FIELDS]
    before, now = (", ".join(f"{name} {values[side]}" for name, values in shown) for side in (0, 1))
    return f"{there.name} ({before})", f"{here.name} ({now})"


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

    def save(self, info: CheckpointInfo, facts: RankFacts) -> None:
        """Copy what this rank writes, then write it beside the training. Waits for the save before.

        ``info`` is the same on all ranks; loss and digest are put together from `facts` of all.

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
        config = self.config
        retention = Retention(config.keep, config.keep_every)
        writer = FolderWriter(Path(config.folder), info.step, config.files, retention, self._count)
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

    def load(self) -> CheckpointInfo:
        """Fill the pieces from `config.resume_from`.

        Raises:
            SpecError: it is of another model or optimizer, or no checkpoint.
            ExecutionError: it cannot be read.
        """
        checkpoint = Path(self.config.resume_from)
        index = read_index(checkpoint)
        load_pieces(
            checkpoint, index, self._pieces(), self._group, converts_dtype=self.config.converts_dtype,
            progress=self._count,
        )  # fmt: skip
        return index.info

    def _count(self, num_bytes: int) -> None:
        """Bytes were written or read, by whatever thread."""
        self._num_bytes += num_bytes
        if self._beat is not None:
            self._beat(self._num_bytes)


def _rule_name(optimizer: str) -> str:
    """Of an optimizer its name, without options, which may change, and without the folder of a user's file."""
    return Reference.of(optimizer).name.rpartition("/")[2]


def load_pieces(
    checkpoint: Path,
    index: CheckpointIndex,
    pieces: Sequence[Piece],
    group: Any = None,
    *,
    converts_dtype: bool = False,
    is_complete: bool = True,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Fill pieces from a checkpoint of any layout; of its files only the boxes that they need are read.

    ``is_complete``: the pieces of all ranks must use every tensor of the checkpoint.

    Raises:
        SpecError: a tensor is missing, left over, or of another shape or dtype.
        ExecutionError: a file is missing or broken.
    """
    planner = PieceLoadPlanner([p for p in pieces if p.tensor.numel()], converts_dtype, is_complete)
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
