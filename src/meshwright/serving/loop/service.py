"""A service: the loop in a thread of its own, for requests that come when they come.

Whoever submits a request gets a stream of its tokens. The queue is bounded; a request may be ended at any moment, by
its caller or its deadline; and when the engine fails, those who were served are told and a new engine is started.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.serving.block.block_key import block_keys
from meshwright.serving.engine.engine import INFINITY, Engine, StepResult
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.loop.output_stream import OutputDelta, OutputStream
from meshwright.serving.loop.serving_loop import Observer, ServingLoop
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence as RunningSequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import Draining, MeshwrightError, QueueFull, RequestRefused

logger = logging.getLogger(__name__)

MOST_FAILURES = 3  # of an engine within FAILURES_S, after which no other is started
FAILURES_S = 60.0
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0  # what a caller is told who finds the queue full

Start = Callable[[WallClock], tuple[Scheduler, Engine]]


@dataclass(frozen=True)
class ServiceState:
    """A service at one moment.

    Args:
        is_ready: does it take requests?
        num_running, num_waiting: sequences.
        num_open: requests that have not ended.
        num_held_blocks, num_blocks, block_tokens: of the engine.
        num_held_host_blocks, num_host_blocks: in host memory, to which others are swapped out.
        num_failures: of engines, so far.
    """

    is_ready: bool
    num_running: int
    num_waiting: int
    num_open: int
    num_held_blocks: int
    num_blocks: int
    block_tokens: int
    num_held_host_blocks: int
    num_host_blocks: int
    num_failures: int


class Service:
    """Args:
    start: makes the scheduler and the engine, in the service's own thread; again after a failure.
    max_queue: requests that may be under way or wait; more are refused.
    observers: see what happens, in the service's thread.
    """

    def __init__(self, start: Start, max_queue: int = 1024, observers: Sequence[Observer] = ()) -> None:
        self.max_queue, self.clock = max_queue, WallClock()
        self._start, self._observers = start, observers
        self._inbox = _Inbox()
        self._streams: dict[str, OutputStream] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._asked: deque[tuple[str, int | None]] = deque()  # whom their callers want to end
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._is_closed = self._is_draining = False
        self._failures: list[float] = []
        self._ended_s: deque[float] = deque(maxlen=64)
        self._begin()
        self._thread = threading.Thread(target=self._serve, name="serving", daemon=True)
        self._thread.start()

    # -- callers

    def submit(self, request: Request) -> OutputStream:
        """Serve it, from now on.

        Raises:
            RequestRefused: it can never be served.
            QueueFull: not now; says when to come again.
            Draining: the service ends, or could not go on.
        """
        with self._lock:
            if self._is_closed or self._is_draining:
                raise Draining("this server takes no more requests", next="send it to another, or later")
            if len(self._streams) >= self.max_queue:
                raise QueueFull(
                    f"{len(self._streams)} requests wait or run", allowed=f"{self.max_queue}",
                    retry_after_s=self._retry_s(),
                )  # fmt: skip
            if request.id in self._streams:
                raise RequestRefused(f"request {request.id} is there already", next="give it another id")
            self._scheduler.check(request)
            request.arrival_s = self.clock.now_s()
            if request.prompt is not None:
                size = self._scheduler.pool.block_tokens
                request.block_keys = block_keys(request.prompt, size, request.adapter)
            stream = self._streams[request.id] = OutputStream(request.id, request.num_outputs)
            self._inbox.put(request)
        self._wake.set()
        return stream

    def abort(self, request_id: str, output: int | None = None) -> None:
        """End a request, or one of its outputs, whatever it is doing; its blocks are free in the next step. Nothing where
        it has ended."""
        self._asked.append((request_id, output))
        self._wake.set()

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, and wait until those under way have ended; False: some were ended at the limit."""
        self._is_draining = True
        until_s = self.clock.now_s() + timeout_s
        while self._streams and self.clock.now_s() < until_s and self._thread.is_alive():
            self.clock.reach(min(until_s, self.clock.now_s() + 0.01))
        left = list(self._streams)
        for request_id in left:
            self.abort(request_id)
        return not left

    def close(self) -> None:
        """End everything. A service that is closed stays so."""
        with self._lock:
            self._is_closed = True
        self._wake.set()
        self._thread.join()

    def snapshot(self) -> ServiceState:
        """How it is now."""
        scheduler = self._scheduler
        pool, host = scheduler.pool, scheduler.host_pool
        return ServiceState(
            is_ready=not self._is_closed and not self._is_draining,
            num_running=scheduler.num_running,
            num_waiting=len(scheduler.waiting) + len(self._inbox),
            num_open=len(self._streams),
            num_held_blocks=pool.num_held,
            num_blocks=pool.num_blocks,
            block_tokens=pool.block_tokens,
            num_held_host_blocks=host.num_held if host else 0,
            num_host_blocks=host.num_blocks if host else 0,
            num_failures=len(self._failures),
        )

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- what the loop tells

    def arrived(self, request: Request, now_s: float) -> None:
        """It may have a deadline."""
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (request.deadline_s, request.id))

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """It was checked when it came, so it is another's mistake: it is told all the same."""
        for output in range(request.num_outputs):
            self._put(request.id, OutputDelta(output, [], [], [], "error", str(why)))

    def given_out(self, batch: Batch, now_s: float) -> None:
        """Nobody is told."""

    def ran(self, result: StepResult) -> None:
        """Tokens go to their streams."""
        reasons = {ended.sequence: ended.reason for ended in result.ended}
        deltas: dict[RunningSequence, OutputDelta] = {}
        for token in result.tokens:
            sequence = token.sequence
            delta = deltas.get(sequence)
            if delta is None:
                delta = deltas[sequence] = OutputDelta(sequence.output, [], [], [], reasons.get(sequence, ""))
            if token.token_id >= 0:
                delta.token_ids.append(token.token_id)
                delta.logprobs.append(token.logprob)
                delta.top.append(token.top)
            if token.vector is not None:
                delta.vector = token.vector
        for sequence, delta in deltas.items():
            if delta.finish_reason == "error":
                delta.error = "the model gave no token: its logits are no numbers"
            self._put(sequence.request.id, delta)

    def left(self, sequence: RunningSequence, now_s: float, reason: str) -> None:
        """`_end` tells its stream."""

    # -- the thread

    def _begin(self) -> None:
        self._scheduler, self._engine = self._start(self.clock)
        self._loop = ServingLoop(
            self._scheduler, self._engine, self._inbox, self.clock, [self, *self._observers]
        )

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                self._step()
            except Exception as error:
                self._fail(error)
        for request_id in list(self._streams):
            self._end(request_id, "abort")
        self._close_engine()

    def _step(self) -> None:
        self._wake.clear()
        self._end_early()
        loop = self._loop
        loop.take_arrivals()
        while loop.give_out():
            pass
        if loop.num_under_way:
            if loop.has_free_lane and not self._engine.has_ended(self._wake.set):
                self._wake.wait()  # for its end, or for a request that has a lane to go to
                return
            loop.collect()
        elif not self._asked and not len(self._inbox) and not self._is_closed:
            self._wake.wait(max(0.0, self._deadlines[0][0] - self.clock.now_s()) if self._deadlines else None)

    def _end_early(self) -> None:
        """End whom their callers, or their deadlines, want to end."""
        while self._asked:
            request_id, output = self._asked.popleft()
            self._end(request_id, "abort", output=output)
        now_s = self.clock.now_s()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            self._end(heapq.heappop(self._deadlines)[1], "deadline")

    def _end(self, request_id: str, reason: str, error: str = "", output: int | None = None) -> None:
        if request_id not in self._streams:
            return
        ended = self._loop.end(request_id, reason, output)
        if output is None and (request := self._inbox.remove(request_id)) is not None:
            for number in range(request.num_outputs):
                self._put(request_id, OutputDelta(number, [], [], [], reason, error))
        for sequence in ended:
            self._put(request_id, OutputDelta(sequence.output, [], [], [], reason, error))

    def _put(self, request_id: str, delta: OutputDelta) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.put(delta)
        if stream.has_all:
            del self._streams[request_id]
            self._ended_s.append(self.clock.now_s())

    def _fail(self, error: Exception) -> None:
        """Tell who ran, and start again; who waits in the inbox has lost nothing."""
        logger.error("the engine failed: %s", error, exc_info=not isinstance(error, MeshwrightError))
        text = f"the engine failed while it served this request: {error}"
        for sequence in list(self._scheduler.sequences()):
            self._end(sequence.request.id, "error", text)
        self._close_engine()
        now_s = self.clock.now_s()
        self._failures = [*(at_s for at_s in self._failures if at_s > now_s - FAILURES_S), now_s]
        try:
            if len(self._failures) >= MOST_FAILURES:
                raise error
            self._begin()
        except Exception:
            logger.exception("no other engine is started")
            with self._lock:
                self._is_closed = True

    def _close_engine(self) -> None:
        try:
            self._engine.close()
        except Exception:
            logger.exception("the engine could not be closed")

    def _retry_s(self) -> float:
        """When a place is likely to be free: the time that one request takes, of those that ended last."""
        if len(self._ended_s) < 2:
            return LEAST_RETRY_S
        span_s = self.clock.now_s() - self._ended_s[0]
        return min(max(LEAST_RETRY_S, span_s / len(self._ended_s)), MOST_RETRY_S)


class _Inbox:
    """Requests that have come and wait for the loop's thread."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def put(self, request: Request) -> None:
        """From any thread."""
        self._requests.append(request)

    def remove(self, request_id: str) -> Request | None:
        """Take one back before the loop has it."""
        for request in list(self._requests):
            if request.id == request_id:
                self._requests.remove(request)
                return request
        return None

    def next_s(self) -> float:
        """Now, or nobody knows."""
        return 0.0 if self._requests else INFINITY

    def take(self, now_s: float) -> Sequence[Request]:
        """All."""
        taken = []
        while self._requests:
            taken.append(self._requests.popleft())
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Its stream says so."""
