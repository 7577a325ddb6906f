"""What became of each request: an observer of the loop. No request is lost from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshwright.serving.engine.engine import StepResult
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused


@dataclass(slots=True)
class RequestRecord:
    """One output of one request; seconds on the loop's clock, NaN where it never came to that.

    Args:
        request: which.
        begun_s: when its first chunk was given out; `begun_s - arrival_s` is its queueing.
        first_token_s, end_s: when its first and its last token were there.
        num_tokens: that it got.
        num_cached: prompt tokens that were found computed.
        num_preemptions: how often it had to leave.
        reason: why it ended; "" while it has not.
    """

    request: Request
    begun_s: float = float("nan")
    first_token_s: float = float("nan")
    end_s: float = float("nan")
    num_tokens: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    reason: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token, queueing included."""
        return self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Time per output token behind the first; NaN for an output of one token."""
        return (
            (self.end_s - self.first_token_s) / (self.num_tokens - 1) if self.num_tokens > 1 else float("nan")
        )

    @property
    def e2e_s(self) -> float:
        """From arrival to the last token."""
        return self.end_s - self.request.arrival_s


@dataclass(slots=True)
class StepLog:
    """Steps of a loop, one entry a batch: when it ended, how often it ran, how many sequences each time got a token.

    `gap_s`: between the tokens of those who decoded, each time: since their lane's step before, and where nobody was left
    there who would go on, since this one began. (A sequence that comes back, or from another replica, is counted as those
    who go on are: what it waited is in its own times.)
    """

    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)
    num_decodes: list[int] = field(default_factory=list)
    num_prefill_tokens: list[int] = field(default_factory=list)


class RequestLog:
    """Records of all requests that came, ended or not, and of all steps."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.never: list[Request] = []  # what was refused
        self.steps = StepLog()
        self._open: dict[tuple[str, int], RequestRecord] = {}
        self._going_on: dict[int, float] = {}  # lanes with sequences that go on: when their last step ended

    def arrived(self, request: Request, now_s: float) -> None:
        """A record for each of its outputs."""
        for output in range(request.num_outputs):
            record = self._open[request.id, output] = RequestRecord(request)
            self.records.append(record)

    def refused(self, request: Request, now_s: float, why: RequestRefused) -> None:
        """Kept apart: it was never served."""
        self.never.append(request)

    def given_out(self, batch: Batch, now_s: float) -> None:
        """Some begin."""
        for chunk in batch.chunks:
            sequence = chunk.sequence
            if chunk.start == max(0, sequence.num_cached) and not sequence.num_preemptions:
                record = self._open[sequence.request.id, sequence.output]
                record.begun_s = now_s
                record.num_cached = sequence.num_cached

    def ran(self, result: StepResult) -> None:
        """Some got their first token, some their last."""
        batch, steps = result.batch, self.steps
        since_s = self._going_on.pop(batch.lane, result.start_s)
        steps.gap_s.append((result.end_s - since_s) / result.num_steps)
        steps.start_s.append(result.start_s)
        steps.end_s.append(result.end_s)
        steps.num_steps.append(result.num_steps)
        steps.num_decodes.append(batch.num_decodes)
        steps.num_prefill_tokens.append(batch.num_prefill_tokens)
        num_left = batch.num_decodes - len(result.ended)
        for chunk in batch.chunks:
            if chunk.is_last:
                num_left += 1
                record = self._open.get((chunk.sequence.request.id, chunk.sequence.output))
                if record is not None and record.first_token_s != record.first_token_s:
                    record.first_token_s = result.end_s
        for ended in result.ended:
            self._end(ended.sequence, result.end_s, ended.reason, ended.num_tokens)
        if num_left > 0:
            self._going_on[batch.lane] = result.end_s

    def left(self, sequence: Sequence, now_s: float, reason: str) -> None:
        """One was ended: it counts among all, not among those that finished."""
        self._end(sequence, now_s, reason, 0)

    def _end(self, sequence: Sequence, now_s: float, reason: str, num_tokens: int) -> None:
        record = self._open.pop((sequence.request.id, sequence.output), None)
        if record is not None:
            record.end_s, record.reason, record.num_tokens = now_s, reason, num_tokens
            record.num_preemptions = sequence.num_preemptions
