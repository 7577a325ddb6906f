"""OccupancyLog: how full a scheduler is as time goes: who runs, who waits, which blocks are held. An observer of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.serving.engine.engine import StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused


@dataclass(slots=True)
class OccupancyLog:
    """One entry when a batch is given out, one when it has run, and where nothing is given out then, one of what is left.

    Attributes:
        scheduler: which.
        time_s: of each entry, on the loop's clock.
        num_running, num_waiting: sequences that have blocks and are computed, and those that wait for them.
        num_held: blocks that sequences hold.
    """

    scheduler: Scheduler
    time_s: list[float] = field(default_factory=list)
    num_running: list[int] = field(default_factory=list)
    num_waiting: list[int] = field(default_factory=list)
    num_held: list[int] = field(default_factory=list)
    _has_run: bool = False

    def arrived(self, request: Request, now_s: float) -> None:
        """It is counted with the next batch. Those whom the last one ended have left when it had run."""
        if self._has_run:
            self._note(self.time_s[-1], num_come=1)

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """It never takes anything."""

    def given_out(self, batch: Batch, now_s: float) -> None:
        """Some may have begun."""
        self._note(now_s)

    def ran(self, result: StepResult) -> None:
        """Those who decode have grown, and those who ended have not left yet."""
        self._note(result.end_s)
        self._has_run = True

    def left(self, sequence: Sequence, now_s: float, reason: str) -> None:
        """One was ended from outside."""
        self._note(now_s)

    def _note(self, now_s: float, num_come: int = 0) -> None:
        scheduler = self.scheduler
        self._has_run = False
        self.time_s.append(now_s)
        self.num_running.append(scheduler.num_running)
        self.num_waiting.append(len(scheduler.waiting) - num_come)
        self.num_held.append(scheduler.pool.num_held)
