"""The loop: requests come, the scheduler gives out batches, the engine runs them, sequences end. On any clock."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from meshwright.serving.engine.engine import INFINITY, Engine, StepResult
from meshwright.serving.loop.clock import Clock
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused


class Arrivals(Protocol):
    """Where requests come from."""

    def next_s(self) -> float:
        """When the next one comes; infinity: no more, as far as anybody knows."""
        ...

    def take(self, now_s: float) -> Items[Request]:
        """Those that have come by now."""
        ...

    def ended(self, request: Request, now_s: float) -> None:
        """All of a request has ended (a closed loop sends its next one then)."""
        ...


class Observer(Protocol):
    """Sees all that happens in a loop."""

    def arrived(self, request: Request, now_s: float) -> None:
        """A request waits from now on."""
        ...

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """A request can never be served."""
        ...

    def given_out(self, batch: Batch, now_s: float) -> None:
        """A batch goes to the engine. It is only now as it is: the lane's sequences change."""
        ...

    def ran(self, result: StepResult) -> None:
        """A batch has run; its sequences that ended are still in their lanes."""
        ...

    def left(self, sequence: Sequence, now_s: float, reason: str) -> None:
        """A sequence was ended from outside: by its caller, its deadline, a failure."""
        ...


class ServingLoop:
    """Joins a scheduler with an engine. `run` serves until nothing is left to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        arrivals: Arrivals,
        clock: Clock,
        observers: Items[Observer] = (),
    ) -> None:
        self.scheduler, self.engine, self.arrivals, self.clock = scheduler, engine, arrivals, clock
        self.observers = list(observers)
        self._free = [engine.depth] * engine.num_lanes  # batches that each lane may still submit
        self._most_under_way = sum(self._free)
        self.num_under_way = 0

    def run(self) -> None:
        """Serve all that comes."""
        while True:
            self.take_arrivals()
            while self.num_under_way < self._most_under_way and self.give_out():
                pass
            next_s = self.arrivals.next_s()
            if self.num_under_way and not (self.has_free_lane and next_s < self.engine.next_end_s()):
                self.collect()
            elif next_s == INFINITY:
                return
            else:
                self.clock.reach(next_s)

    @property
    def has_free_lane(self) -> bool:
        """May a batch be submitted before one is polled?"""
        return any(self._free)

    def take_arrivals(self) -> None:
        """Let those who have come wait in the scheduler."""
        now_s = self.clock.now_s()
        if self.arrivals.next_s() > now_s:
            return
        for request in self.arrivals.take(now_s):
            try:
                self.scheduler.add(request)
            except RequestRefused as why:
                for observer in self.observers:
                    observer.refused(request, now_s, why)
                self.arrivals.ended(request, now_s)
            else:
                for observer in self.observers:
                    observer.arrived(request, now_s)

    def give_out(self) -> bool:
        """Give every lane that has room its next batch. Was there any?"""
        now_s, any_given = self.clock.now_s(), False
        for lane, free in enumerate(self._free):
            if not free:
                continue
            batch = self.scheduler.next(now_s, lane)
            if batch is None:
                continue
            if self.engine.depth > 1:
                batch.repeats = 1  # the next batch is chosen before anybody knows how often this one ran
            for observer in self.observers:
                observer.given_out(batch, now_s)
            self.engine.submit(batch, now_s, self.arrivals.next_s())
            self._free[lane] -= 1
            self.num_under_way += 1
            any_given = True
        return any_given

    def end(self, request_id: str, reason: str, output: int | None = None) -> list[Sequence]:
        """End a request from outside, or one of its outputs; returns its sequences that had not ended."""
        ended = self.scheduler.abort(request_id, output)
        for sequence in ended:
            self.engine.forget(sequence)
            for observer in self.observers:
                observer.left(sequence, self.clock.now_s(), reason)
        return ended

    def collect(self) -> StepResult:
        """Wait for a batch, and end what it ended."""
        result = self.engine.poll()
        self.clock.reach(result.end_s)
        self.num_under_way -= 1
        self._free[result.batch.lane] += 1
        if result.num_steps > 1:
            self.scheduler.ran(result.batch, result.num_steps)
        if result.batch.num_proposed:
            accepted = {each.sequence: each.num_accepted for each in result.speculated}
            self.scheduler.settle(result.batch, accepted)
        for observer in self.observers:
            observer.ran(result)
        for ended in result.ended:
            self.scheduler.finish(ended.sequence, ended.keys)
            self.engine.forget(ended.sequence)
            if not self.scheduler.has(ended.sequence.request.id):
                self.arrivals.ended(ended.sequence.request, result.end_s)
        return result
