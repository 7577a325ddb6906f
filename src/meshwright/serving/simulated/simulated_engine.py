"""SimulatedEngine: takes batches as a real engine does, and tells when each would have run, and who has all of its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from meshwright.serving.engine.engine import INFINITY, Ended, Speculated, StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.proposed.simulated_decoder import SimulatedDecoder
from meshwright.serving.simulated.step_model import StepModel


class SimulatedEngine:
    """One replica. Batches of its lanes go through its stages one behind the other: the next one may enter when the one
    before has left the slowest stage.

    A sequence ends with the tokens that its request got when it was recorded, or that it may get at most. With a decoder,
    it gets as many of them in a step as are accepted.
    """

    depth = 1

    def __init__(
        self,
        scheduler: Scheduler,
        steps: StepModel,
        num_lanes: int = 1,
        decoder: SimulatedDecoder | None = None,
    ) -> None:
        self.num_lanes, self._decoder = num_lanes, decoder
        self._scheduler, self._steps = scheduler, steps
        self._results: deque[StepResult] = deque()
        self._lanes = [_Endings() for _ in range(num_lanes)]
        self._free_s = self._last_end_s = 0.0

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Run it on paper."""
        lane = self._lanes[batch.lane]
        self._take_note(batch, lane)
        start_s = now_s if now_s > self._free_s else self._free_s
        if batch.chunks or batch.repeats == 1:
            step = self._timed(batch)
            num, end_s = 1, start_s + step.latency_s
            self._free_s = start_s + step.period_s
        else:
            most = min(batch.repeats, lane.num_steps_left())
            num, seconds = self._steps.run(batch.num_decodes, batch.decode_context, most, until_s - start_s)
            end_s = self._free_s = start_s + seconds
        self._last_end_s = end_s = max(end_s, self._last_end_s)  # no batch overtakes another
        speculated = self._speculated(batch, lane)
        ended = [Ended(each, "length", _num_output(each)) for each in lane.advance(num)]
        self._results.append(StepResult(batch, start_s, end_s, num, ended, (), speculated))

    def poll(self) -> StepResult:
        """The first that was submitted: it ends first."""
        return self._results.popleft()

    @property
    def is_busy(self) -> bool:
        """Is anything under way?"""
        return bool(self._results)

    def next_end_s(self) -> float:
        """When the first of what is under way ends."""
        return self._results[0].end_s

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Nobody waits on a virtual clock."""
        return True

    def forget(self, sequence: Sequence) -> None:
        """It ends no more."""
        for lane in self._lanes:
            lane.leave(sequence)

    def close(self) -> None:
        """It holds nothing."""

    def _timed(self, batch: Batch) -> StepTime:
        chunks = [(chunk.start, chunk.num_tokens) for chunk in batch.chunks]
        shape = BatchShape.of(chunks, batch.num_decodes, batch.decode_context)
        if self._decoder is None:
            return self._steps.step(shape)
        return self._decoder.step(self._steps, shape, batch.num_proposed)

    def _speculated(self, batch: Batch, lane: _Endings) -> list[Speculated]:
        """What is accepted of what is proposed to the decodes of a batch."""
        if self._decoder is None or not batch.num_proposed:
            return []
        found = []
        for sequence in batch.decodes:
            length = self._scheduler.length(sequence)
            num = self._decoder.num_accepted(sequence, length, batch.num_proposed)
            found.append(Speculated(sequence, batch.num_proposed, lane.hasten(sequence, num)))
        return found

    def _take_note(self, batch: Batch, lane: _Endings) -> None:
        """Who of a batch ends when."""
        for sequence in batch.preempted:  # some of another lane, that has no batch now
            self.forget(sequence)
        if batch.num_decodes != len(lane):  # some came with their blocks
            for sequence in batch.decodes:
                if sequence not in lane:
                    lane.enter(sequence, self._num_left(sequence))
        for chunk in batch.chunks:
            if chunk.is_last:
                lane.enter(chunk.sequence, self._num_left(chunk.sequence))

    def _num_left(self, sequence: Sequence) -> int:
        """Tokens that it lacks behind the one that the submitted batch gives, which the scheduler counts already."""
        got = self._scheduler.length(sequence) - sequence.request.num_prompt_tokens
        return _num_output(sequence) - got


def _num_output(sequence: Sequence) -> int:
    return sequence.request.num_output_tokens or sequence.request.max_output_tokens


class _Endings:
    """The sequences of a lane by the step behind which each ends."""

    def __init__(self) -> None:
        self._step = 0  # of the batch that is submitted
        self._ends: dict[Sequence, int] = {}
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._ends

    def enter(self, sequence: Sequence, num_left: int) -> None:
        """It gets a token in this step, and so many behind it."""
        self._ends[sequence] = end = self._step + max(num_left, 0)
        heappush(self._heap, (end, sequence.order, sequence))

    def leave(self, sequence: Sequence) -> None:
        """It does not end here."""
        self._ends.pop(sequence, None)

    def hasten(self, sequence: Sequence, num_tokens: int) -> int:
        """It gets so many tokens more in this step, at most as many as it lacks; how many."""
        end = self._ends[sequence]
        num = min(num_tokens, end - self._step)
        if num:
            self._ends[sequence] = end - num
            heappush(self._heap, (end - num, sequence.order, sequence))
        return num

    def num_steps_left(self) -> int:
        """From this step to the one in which the first ends, both counted."""
        heap, ends = self._heap, self._ends
        while heap and ends.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] - self._step + 1 if heap else 1

    def advance(self, num_steps: int) -> list[Sequence]:
        """So many steps are run; who ended in the last of them."""
        self._step += num_steps
        found: list[Sequence] = []
        heap, ends = self._heap, self._ends
        while heap and heap[0][0] < self._step:
            end, _, sequence = heappop(heap)
            if ends.get(sequence) == end:
                found.append(sequence)
                del ends[sequence]
        return found
