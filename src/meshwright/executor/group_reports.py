"""What a rank of a launched job reports: sums over all ranks through the process group, files to rank 0 at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.executor.gather import Iteration, iteration_of
from meshwright.executor.job import Job
from meshwright.executor.process_group import ProcessGroups, Team
from meshwright.executor.watchdog import SharedPositions

FIELDS = ("loss", "squared_norm", "num_undone", "held_out_loss")  # then: asked to stop, out of time
NUM_PINGS = 10  # to compare clocks; the fastest one counts
FILES = ("times-{}.npz", "tensors-{}.pt", "memory-{}.npz")


class Sum(NamedTuple):
    """A sum under way: of which iteration, whether of its evaluation, and when this rank had its share."""

    iteration: int
    is_evaluation: bool
    values: Tensor
    work: Any
    time_s: float
    spent: Mapping[str, Any]  # of this rank


class GroupReports:
    """Every rank hands in its share of an iteration's sums without waiting; they are looked at one report later.

    So all ranks learn at the same iteration that one of them wants to stop. Rank 0 makes iterations of the sums.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        shared: SharedPositions,
        progress: Callable[[Iteration], None] | None,
        duration_s: float | None,
    ) -> None:
        self.job, self.rank, self.shared, self.progress = job, rank, shared, progress
        self.finished: list[Iteration] = []
        self.wants_to_stop = self.was_asked = False
        self.clock_offset_s = 0.0
        self._duration_s, self._begin_s = duration_s, time.monotonic()
        self._under_way: deque[Sum] = deque()
        self._held: Sum | None = None  # an iteration whose evaluation is still to come

    @property
    def teams(self) -> Sequence[Team]:
        """The group of its own that it needs."""
        return [(tuple(range(self.job.num_ranks)), "reports")]

    def begin(self, groups: ProcessGroups) -> None:
        """All groups are made: compare clocks."""
        self._group = groups.inner(*self.teams[0])
        self.clock_offset_s = _clock_offset_s(self.rank, self.job.num_ranks, self._group)

    def send(self, **fields: Any) -> None:
        """This rank's share of an iteration or evaluation; anything else is not for the others."""
        if "iteration" not in fields:
            return
        is_over = self._duration_s is not None and time.monotonic() - self._begin_s > self._duration_s
        flags = [float(self.wants_to_stop), float(is_over)]
        values = torch.tensor(
            [*(float(fields.get(name, 0.0)) for name in FIELDS), *flags], dtype=torch.float64
        )
        work = dist.all_reduce(values, group=self._group, async_op=True)
        number = int(fields["iteration"])
        spent: dict[str, Any] = {name: fields[name] for name in ("computes", "waits") if name in fields}
        is_evaluation = "held_out_loss" in fields
        self._under_way.append(Sum(number, is_evaluation, values, work, float(fields["time"]), spent))
        while len(self._under_way) > 1:
            self._look(self._under_way.popleft(), number)

    def _look(self, one: Sum, iteration: int) -> None:
        """A sum is complete, while all ranks are done with `iteration`."""
        one.work.wait()
        asked, over = one.values[len(FIELDS) :].tolist()
        if asked or over:
            self.was_asked = self.was_asked or asked > 0
            self.shared.stop_after(iteration + 1)
        if self.rank == 0:
            self._finish(one)

    def _finish(self, one: Sum) -> None:
        """An iteration, with its evaluation where there is one."""
        training = self.job.training
        if not one.is_evaluation:
            if training is not None and training.is_evaluated(one.iteration, self.job.iterations):
                self._held = one
                return
            self._note(one, None)
        elif self._held is not None:
            self._note(self._held, one)
            self._held = None

    def _note(self, one: Sum, evaluated: Sum | None) -> None:
        rows, held_out = ({0: _row(found)} if found else {} for found in (one, evaluated))
        before = self.finished[-1] if self.finished else None
        finished = iteration_of(self.job, one.iteration, rows, held_out, before, self._begin_s)
        self.finished.append(finished.without_spent())
        if self.progress is not None:
            self.progress(finished)

    def end(self, folder: Path) -> None:
        """Look at what is still under way, and bring what the ranks wrote to rank 0's folder."""
        while self._under_way:
            one = self._under_way.popleft()
            self._look(one, one.iteration)
        if self._held is not None:
            self._note(self._held, None)
        for rank in range(1, self.job.num_ranks):
            for name in FILES:
                self._bring(folder / name.format(rank), rank)

    def _bring(self, path: Path, rank: int) -> None:
        """A file of a rank to rank 0."""
        if self.rank == rank:
            data = torch.from_numpy(np.frombuffer(path.read_bytes(), dtype=np.uint8).copy())
            dist.send(torch.tensor([data.numel()]), 0, group=self._group)
            dist.send(data, 0, group=self._group)
        elif self.rank == 0:
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, rank, group=self._group)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(data, rank, group=self._group)
            path.write_bytes(data.numpy().tobytes())


def _row(one: Sum) -> dict[str, Any]:
    return {"time": one.time_s, **one.spent, **dict(zip(FIELDS, one.values.tolist()))}


def _clock_offset_s(rank: int, num_ranks: int, group: Any) -> float:
    """What to add to this rank's clock to have rank 0's; right to half the way there and back of the fastest ping."""
    found = 0.0
    for other in range(1, num_ranks):
        best_s = float("inf")
        for _ in range(NUM_PINGS):
            clock = torch.zeros(1, dtype=torch.float64)
            if rank == 0:
                dist.recv(clock, other, group=group)
                dist.send(torch.tensor([time.monotonic()], dtype=torch.float64), other, group=group)
            elif rank == other:
                sent_s = time.monotonic()
                dist.send(clock, 0, group=group)
                dist.recv(clock, 0, group=group)
                back_s = time.monotonic()
                if back_s - sent_s < best_s:
                    best_s = back_s - sent_s
                    found = float(clock) - 0.5 * (sent_s + back_s)
    return found
