"""SimulatedReplica: one scheduler, engine and loop on a virtual clock, moved on to the time at which a router looks at it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.engine.engine import INFINITY
from meshwright.serving.loop.arrivals import ClientArrivals, RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.occupancy_log import OccupancyLog
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.loop.serving_loop import Observer, ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.proposed.simulated_decoder import SimulatedDecoder
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.step_model import StepModel


class RoutedArrivals:
    """The requests that a router gave one replica. `horizon_s`: when the router may give it another; `on_end`: is told when
    one has ended."""

    def __init__(self) -> None:
        self.horizon_s = INFINITY
        self.on_end: Callable[[Request, float], None] = lambda _, __: None
        self._requests: deque[Request] = deque()

    def give(self, request: Request) -> None:
        """It comes at its arrival."""
        self._requests.append(request)

    def next_s(self) -> float:
        """When the next one comes, or may come."""
        return self._requests[0].arrival_s if self._requests else self.horizon_s

    def take(self, now_s: float) -> Items[Request]:
        """Those that have come by now."""
        taken = []
        while self._requests and self._requests[0].arrival_s <= now_s:
            taken.append(self._requests.popleft())
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Its router is told."""
        self.on_end(request, now_s)


class PrefilledScheduler(Scheduler):
    """Its requests come with their prompts' keys and values, and their first token."""

    def add(self, request: Request, is_prefilled: bool = True) -> list[Sequence]:
        """It waits for blocks, and then decodes."""
        return super().add(request, is_prefilled)


class SimulatedReplica:
    """One replica of a fleet. `is_watched`: is it noted how full it is?"""

    def __init__(
        self, steps: StepModel, num_blocks: int, block_tokens: int, limits: Limits, num_lanes: int = 1,
        is_prefilled: bool = False, decoder: SimulatedDecoder | None = None, is_watched: bool = False,
    ) -> None:  # fmt: skip
        kind = PrefilledScheduler if is_prefilled else Scheduler
        self.pool = BlockPool(num_blocks, block_tokens)
        self.scheduler = kind(
            ContinuousBatching(), self.pool, limits, None, num_lanes, decoder.num_tokens if decoder else 0
        )
        self.engine = SimulatedEngine(self.scheduler, steps, num_lanes, decoder)
        self.arrivals, self.clock, self.log = RoutedArrivals(), VirtualClock(), RequestLog()
        self.occupancy = OccupancyLog(self.scheduler)
        observers: list[Observer] = [self.log, self.occupancy] if is_watched else [self.log]
        self.loop = ServingLoop(self.scheduler, self.engine, self.arrivals, self.clock, observers)

    def advance(self, until_s: float) -> None:
        """Run what ends by then, and give out what may run behind it."""
        loop, engine = self.loop, self.engine
        while engine.is_busy and engine.next_end_s() <= until_s:
            loop.collect()
            loop.take_arrivals()
            loop.give_out()

    def give(self, request: Request) -> None:
        """A request comes now."""
        self.arrivals.give(request)
        if self.loop.has_free_lane:
            self.clock.reach(request.arrival_s)
            self.loop.take_arrivals()
            self.loop.give_out()

    def serve(self, arrivals: RecordedArrivals | ClientArrivals) -> None:
        """All that comes, without a router."""
        self.loop.arrivals = arrivals
        self.loop.run()
