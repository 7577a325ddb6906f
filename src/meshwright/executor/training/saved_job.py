"""When a job saves and loads: what the worker asks between iterations, with what a checkpoint says beside the tensors."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.checkpoint.checkpoint import RankCheckpoints
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.folder import best_before, recover
from meshwright.executor.checkpoint.index import CheckpointInfo, read_index
from meshwright.executor.checkpoint.planner import RankFacts
from meshwright.executor.file.folder_lock import FolderLock
from meshwright.executor.layout.piece import Piece
from meshwright.executor.routing.router_correction import has_corrections
from meshwright.executor.state.group_pieces import saved_pieces
from meshwright.executor.team.rank_team import RankTeam
from meshwright.executor.training.rank_training import TrainingState

# A slow disk is no failure: the watchdog, which sees bytes move, decides long before.
GROUP_TIMEOUT = datetime.timedelta(days=1)


class TrainingCheckpoints:
    """The checkpoints of one rank of a training job; every rank makes one, behind the groups of its program.

    Raises SpecError where another training uses the folder.
    """

    def __init__(
        self, config: CheckpointConfig, state: TrainingState, beat: Callable[[int], None] | None = None
    ) -> None:
        self.config, self.state = config, state
        folder = Path(config.kept.folder)
        self._lock = FolderLock(folder)
        if dist.get_rank() == 0:
            self._lock.take()
            recover(folder)
        resumed = read_index(config.resume_from).tensors if config.resume_from else ()
        self._keeps_corrections = state.corrections.rate > 0 or has_corrections(resumed)
        # of its own beside the thread that writes, and one for what the ranks agree on between steps
        group, self._group = (dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT) for _ in range(2))
        self._checkpoints = RankCheckpoints(config, self._pieces, group, beat)
        self.best_loss = self._best_loss(folder)
        first = state.training.first_step  # without a checkpoint: as if all of it had had batches of today
        self._start = CheckpointInfo(
            step=first, samples=first * state.data.num_samples, tokens=first * state.data.num_step_tokens
        )
        self._loss = 0.0  # this rank's share of the last iteration's
        self._tokens = 0  # of all iterations, which may differ

    def load(self, gathered: Callable[[RankTeam, Tensor], Tensor]) -> None:
        """Where the job resumes: fill what is trained; ``gathered`` gives the parts of all members of a team.

        Raises SpecError and ExecutionError as `RankCheckpoints.load`.
        """
        if not self.config.resume_from:
            return
        self._start = self._checkpoints.load(lambda name: has_corrections([name]))
        with torch.no_grad():  # what is derived from the pieces is made anew, on all ranks together
            for number in sorted(self.state.groups):
                self.state.groups[number].loaded(gathered)

    def _pieces(self) -> list[Piece]:
        """Views of all that steps change on this rank, as boxes of the whole model's tensors; of what steps have changed
        before, too."""
        state = self.state
        shard = state.tensor_shard if state.shard is None else state.shard.tables
        corrections = state.corrections.pieces() if self._keeps_corrections else ()
        trained = (
            piece for number in sorted(state.groups) for piece in saved_pieces(state.groups[number], shard)
        )
        return [*trained, *corrections]

    def is_due(self, iteration: int) -> bool:
        """Is a checkpoint made after this iteration of the job, which has just ended?"""
        self._loss = 0.0 if self.state.loss is None else float(self.state.loss)
        self._tokens += self.state.data.num_step_tokens
        return self.config.is_due(self._step(iteration))

    def _best_loss(self, folder: Path) -> float:
        """The least held-out loss so far, the same on all ranks; infinite where there is none, or it is of other data."""
        found = [math.inf]
        training = self.state.training
        if dist.get_rank() == 0 and training.source.evaluate_every:
            best = best_before(folder, training.first_step)
            info = None if best is None else read_index(best).info
            if info and info.held_out_loss is not None and info.data_digest == training.data_digest():
                found = [info.held_out_loss]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def evaluated(self, share: float) -> tuple[float, bool]:
        """The held-out loss of which ``share`` is this rank's, and whether none before was as small."""
        shares = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, torch.tensor([share], dtype=torch.float64), group=self._group)
        loss = float(sum(shares))  # in the same order on all ranks: they must agree
        is_best = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss) if math.isfinite(loss) else self.best_loss
        return loss, is_best

    def save(self, iteration: int, held_out_loss: float | None = None, is_best: bool = False) -> None:
        """A copy of what is trained is on its way to the disk when this returns. The rank's streams must have ended.

        ``held_out_loss``: of what is saved, where it was found; ``is_best``: none before was as small.

        Raises:
            ExecutionError: the save before has failed.
            SpecError: the folder was removed, and another training has taken it.
        """
        if dist.get_rank() == 0:
            self._lock.keep()
        state, step = self.state, self._step(iteration)
        num_steps = step - self._start.step
        info = CheckpointInfo(
            step,
            samples=self._start.samples + num_steps * state.data.num_samples,
            tokens=self._start.tokens + self._tokens,
            held_out_loss=held_out_loss,
            seed=state.training.seed,
            training=state.training.to_dict(),
            versions={"meshwright": _version(), "torch": str(torch.__version__)},
        )
        # ranks that read nothing, and random tokens, have no digest
        self._checkpoints.save(
            info, RankFacts(self._loss, str(getattr(state.data.batches, "digest", ""))), is_best
        )

    def end(self, num_iterations: int) -> None:
        """After the last iteration: save what is not saved yet, and wait until it is on the disk.

        Raises:
            ExecutionError: a save has failed.
        """
        last = num_iterations - 1
        is_new = num_iterations > 0 and self._step(last) != self._checkpoints.saved_step
        if is_new:
            self.save(last)
        self._checkpoints.close()
        self._lock.release()

    def _step(self, iteration: int) -> int:
        """Steps done after an iteration of the job."""
        return self.state.training.first_step + iteration + 1


def _version() -> str:
    """Of this package; "unknown" where it is run from a checkout that was never installed."""
    try:
        return importlib.metadata.version("meshwright")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
