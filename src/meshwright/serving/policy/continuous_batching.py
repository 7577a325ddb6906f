"""Continuous batching: whoever decodes takes part in every step, and prompts fill up what is left of it.

Iteration-level scheduling is Orca's (Yu et al., OSDI 2022), paged blocks with preemption vLLM's (Kwon et al., SOSP 2023),
chunked prefill beside decodes Sarathi-Serve's (Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.serving.policy.batch_lane import BatchLane
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.policy.sequence import Sequence, Status
from meshwright.specs.error import SpecError
from meshwright.specs.option import option

PREEMPTIONS = ("recompute", "swap")


@dataclass(frozen=True)
class ContinuousBatching:
    """Decodes first, then prompts under way, then who waits; whoever came last (of the lowest priority) leaves when blocks
    run out."""

    is_chunked: bool = option(True, "Compute whole prompts in steps of their own.", "--whole-prompts")
    has_priorities: bool = option(
        True, "Take requests as they came, whatever their priority.", "--no-priorities"
    )
    is_fair: bool = option(False, "Take users in turn, by the tokens they have been served.", "--fair")
    preemption: str = option(
        "recompute", f"What becomes of blocks that are needed: {' or '.join(PREEMPTIONS)}."
    )
    watermark: float = option(0.01, "Share of the blocks that stays free when a request is admitted.")

    def __post_init__(self) -> None:
        if self.preemption not in PREEMPTIONS or not 0.0 <= self.watermark < 1.0:
            raise SpecError(
                f"preemption is {self.preemption!r}, watermark {self.watermark}",
                allowed=f"{' or '.join(PREEMPTIONS)}; 0 to below 1",
            )

    def choose(self, now_s: float, scheduler: Scheduler, lane: BatchLane) -> bool:
        """The batch of a step."""
        budget = scheduler.limits.max_batch_tokens
        if not self.is_chunked and self._prefill_whole(scheduler, lane, budget):
            return False
        while not scheduler.reserve_decodes(lane):
            scheduler.preempt(self._victim(lane), self.preemption == "swap")
        budget -= len(lane.decoding) * (1 + scheduler.reserve_proposals(lane, budget))
        for sequence in list(lane.prefilling):
            if budget > 0:
                budget -= self._prefill(scheduler, sequence, budget)
        if self.is_chunked:
            self._admit(scheduler, lane, budget)
        return True

    def _admit(self, scheduler: Scheduler, lane: BatchLane, budget: int) -> None:
        """Take who waits, as long as there are tokens, places and blocks."""
        places = -(-scheduler.limits.max_sequences // len(scheduler.lanes)) - lane.num_running
        while budget > 0 and places > 0:
            sequence = scheduler.waiting.head()
            if sequence is None or not scheduler.admit(sequence, lane, self._reserve(scheduler, lane)):
                return
            places -= 1
            if sequence.status is Status.PREFILLING:
                budget -= self._prefill(scheduler, sequence, budget)
            else:  # it came back and decodes
                budget -= 1 + scheduler.batch.num_proposed

    def _prefill_whole(self, scheduler: Scheduler, lane: BatchLane, budget: int) -> bool:
        """Take who waits, whole prompts only; at least one, however long. Did anybody come?"""
        places = -(-scheduler.limits.max_sequences // len(scheduler.lanes)) - lane.num_running
        while places > 0:
            sequence = scheduler.waiting.head()
            if sequence is None or (scheduler.batch.chunks and sequence.num_tokens > budget):
                break
            if not scheduler.admit(sequence, lane, self._reserve(scheduler, lane)):
                break
            places -= 1
            if sequence.status is Status.PREFILLING:
                budget -= self._prefill(scheduler, sequence, sequence.num_tokens)
        return bool(scheduler.batch.chunks)

    def _prefill(self, scheduler: Scheduler, sequence: Sequence, budget: int) -> int:
        before = sequence.num_computed
        scheduler.prefill(sequence, budget)
        return sequence.num_computed - before

    def _reserve(self, scheduler: Scheduler, lane: BatchLane) -> int:
        """Blocks that an admission leaves free for those who run; who is alone may take all."""
        return int(self.watermark * scheduler.pool.num_blocks) if scheduler.num_running else 0

    def _victim(self, lane: BatchLane) -> Sequence:
        """Who leaves: of the lowest priority who came last."""
        running = (*lane.prefilling, *lane.decoding)
        return max(
            running, key=lambda each: (each.request.priority if self.has_priorities else 0, each.order)
        )
