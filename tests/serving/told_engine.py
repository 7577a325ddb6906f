"""An engine for tests: a step takes what a formula says, and a sequence ends where its request says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from meshwright.serving.engine.engine import INFINITY, Ended, StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence

FIXED_S, PREFILL_TOKEN_S, DECODE_S, CONTEXT_S = 5e-3, 2e-5, 1e-5, 1e-8


class ToldEngine:
    """One batch after another, in virtual time. `repeats`: does it run decodes alone as often as it may?"""

    def __init__(
        self, scheduler: Scheduler, repeats: bool = True, num_lanes: int = 1, depth: int = 1
    ) -> None:
        self.num_lanes, self.depth = num_lanes, depth
        self._scheduler, self._repeats = scheduler, repeats
        self._results: deque[StepResult] = deque()
        self._free_s = 0.0

    def submit(self, batch: Batch, now_s: float, until_s: float = INFINITY) -> None:
        """Run it at once, on paper."""
        start_s = end_s = max(now_s, self._free_s)
        left = {each: self._left(each) for each in batch.decodes}
        left |= {chunk.sequence: self._left(chunk.sequence) for chunk in batch.chunks if chunk.is_last}
        longest = [(self._scheduler.length(each), each.most_tokens) for each in left]
        assert all(length <= most for length, most in longest), "nobody is given a step beyond its last token"
        num = min([batch.repeats, *[1 + each for each in left.values()]]) if self._repeats else 1
        done = 0
        context = batch.decode_context
        while done == 0 or (done < num and end_s < until_s):
            end_s += FIXED_S + PREFILL_TOKEN_S * batch.num_prefill_tokens
            end_s += DECODE_S * batch.num_decodes + CONTEXT_S * context
            context += batch.num_decodes
            done += 1
        self._free_s = end_s
        ended = [Ended(each, "length", self._output(each)) for each, more in left.items() if more == done - 1]
        self._results.append(StepResult(batch, start_s, end_s, done, ended))

    def poll(self) -> StepResult:
        """The first that was submitted."""
        return self._results.popleft()

    def next_end_s(self) -> float:
        """It is known."""
        return self._results[0].end_s

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """Nobody waits."""
        return True

    def forget(self, sequence: Sequence) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """It holds nothing."""

    def _output(self, sequence: Sequence) -> int:
        return sequence.request.num_output_tokens or sequence.request.max_output_tokens

    def _left(self, sequence: Sequence) -> int:
        """Tokens behind the one that this step gives; the scheduler counts that one already."""
        got = self._scheduler.length(sequence) - sequence.request.num_prompt_tokens
        return self._output(sequence) - got
