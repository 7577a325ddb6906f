"""What a rank of a launched job reports through the process group: every iteration to rank 0, files at the end."""

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

from meshwright.executor.job.gather import Iteration, iteration_of
from meshwright.executor.job.job import Job
from meshwright.executor.meter.rank_times import shift_times
from meshwright.executor.rank.process_group import ProcessGroups, Team
from meshwright.executor.rank.watchdog import SharedPositions

FIELDS = (
    *("time", "loss", "router_loss", "num_dropped", "squared_norm", "num_undone", "held_out_loss"),
)  # of a share; seconds by name follow
SPENT = ("computes", "waits")
NUM_PINGS = 10  # to compare clocks; the fastest one counts
TIMES = "times-{}.npz"
FILES = (TIMES, "tensors-{}.pt", "memory-{}.npz")


class ShareFormat:
    """How one rank's share of an iteration is numbers, as many on every rank: float64, without names.

    The names of what takes time are those of the program, which all ranks have.
    """

    def __init__(self, job: Job) -> None:
        self.names = tuple(dict.fromkeys(effect.name for effect in job.program.tables.effects))

    @property
    def num_numbers(self) -> int:
        """Of a share."""
        return len(FIELDS) + len(SPENT) * len(self.names)

    def numbers(self, fields: Mapping[str, Any]) -> Tensor:
        """A share ``[num_numbers]``; what is not among its fields is 0."""
        spent = [fields.get(part, {}).get(name, 0.0) for part in SPENT for name in self.names]
        return torch.tensor([*(float(fields.get(name, 0.0)) for name in FIELDS), *spent], dtype=torch.float64)

    def fields(self, numbers: Tensor) -> dict[str, Any]:
        """The share that such numbers are of, as `Run` has it from a worker."""
        found: list[float] = numbers.tolist()
        fields: dict[str, Any] = dict(zip(FIELDS, found))
        for place, part in enumerate(SPENT):
            seconds = found[len(FIELDS) + place * len(self.names) :]
            fields[part] = {name: one for name, one in zip(self.names, seconds) if one > 0.0}
        return fields


class Share(NamedTuple):
    """What is under way between the ranks: of which iteration, and whether of its evaluation.

    ``flags``: how many want to stop, or are out of time. ``rows``: of all ranks, on rank 0.
    """

    iteration: int
    is_evaluation: bool
    flags: Tensor
    own: Tensor
    rows: list[Tensor]
    works: tuple[Any, ...]


class GroupReports:
    """Every rank hands in its share of an iteration without waiting; what all said is looked at one report later.

    So all ranks learn at the same iteration that one of them wants to stop. Rank 0 makes iterations of the shares. ``fail``
    is called where the host thread cannot raise what a stream has failed with.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        shared: SharedPositions,
        progress: Callable[[Iteration], None] | None,
        duration_s: float | None,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.job, self.rank, self.shared, self.progress, self.fail = job, rank, shared, progress, fail
        self.finished: list[Iteration] = []
        self.wants_to_stop = self.was_asked = False
        self.clock_offset_s = 0.0
        self._duration_s, self._begin_s = duration_s, time.monotonic()
        self._format = ShareFormat(job)
        self._under_way: deque[Share] = deque()
        self._held: Share | None = None  # an iteration whose evaluation is still to come

    @property
    def teams(self) -> Sequence[Team]:
        """The group of its own that it needs."""
        return [(tuple(range(self.job.num_ranks)), "reports")]

    def begin(self, groups: ProcessGroups) -> None:
        """All groups are made: compare clocks."""
        self._group = groups.labelled(*self.teams[0]).group
        self.clock_offset_s = _clock_offset_s(self.rank, self.job.num_ranks, self._group)

    def send(self, **fields: Any) -> None:
        """This rank's share of an iteration or evaluation; anything else is not for the others."""
        if "iteration" not in fields:
            return
        is_over = self._duration_s is not None and time.monotonic() - self._begin_s > self._duration_s
        number = int(fields["iteration"])
        fields["time"] += self.clock_offset_s
        self._under_way.append(
            self._begin(number, "held_out_loss" in fields, [self.wants_to_stop, is_over], fields)
        )
        while len(self._under_way) > 1:
            self._look(self._under_way.popleft(), number)

    def _begin(self, number: int, is_evaluation: bool, flags: list[bool], fields: Mapping[str, Any]) -> Share:
        """Send the share, and the flags to all."""
        said, own = torch.tensor(flags, dtype=torch.int64), self._format.numbers(fields)
        rows = [torch.empty_like(own) for _ in range(self.job.num_ranks)] if self.rank == 0 else []
        works = (
            dist.all_reduce(said, group=self._group, async_op=True),
            dist.gather(own, rows or None, dst=0, group=self._group, async_op=True),
        )
        return Share(number, is_evaluation, said, own, rows, works)

    def _look(self, one: Share, iteration: int) -> None:
        """All shares are here, while all ranks are done with `iteration`."""
        for work in one.works:
            work.wait()
        asked, over = one.flags.tolist()
        if asked or over:
            self.was_asked = self.was_asked or asked > 0
            self.shared.stop_after(iteration + 1)
        if self.rank == 0:
            self._finish(one)

    def _finish(self, one: Share) -> None:
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

    def _note(self, one: Share, evaluated: Share | None) -> None:
        rows, held_out = (self._rows(found) if found else {} for found in (one, evaluated))
        before = self.finished[-1] if self.finished else None
        finished = iteration_of(self.job, one.iteration, rows, held_out, before, self._begin_s)
        self.finished.append(finished.without_spent())
        if self.progress is not None:
            self.progress(finished)

    def _rows(self, one: Share) -> dict[int, dict[str, Any]]:
        return {rank: self._format.fields(row) for rank, row in enumerate(one.rows)}

    def end(self, folder: Path) -> None:
        """Look at what is still under way, and bring what the ranks wrote to rank 0's folder."""
        while self._under_way:
            one = self._under_way.popleft()
            self._look(one, one.iteration)
        if self._held is not None:
            self._note(self._held, None)
        # the times that are kept are of the last iterations, and clocks have run apart since the first one
        drift_s = _clock_offset_s(self.rank, self.job.num_ranks, self._group) - self.clock_offset_s
        shift_times(folder / TIMES.format(self.rank), drift_s)
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
