"""What chooses the batch of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from meshwright.serving.policy.batch_lane import BatchLane
    from meshwright.serving.policy.scheduler import Scheduler


class SchedulerPolicy(Protocol):
    """Chooses by calling what a scheduler lets it do. It holds no tensors, reads no clock, and is asked once a step."""

    @property
    def is_fair(self) -> bool:
        """Is it the turn of users, not of requests?"""
        ...

    @property
    def has_priorities(self) -> bool:
        """Do requests of a smaller number go first?"""
        ...

    @property
    def is_chunked(self) -> bool:
        """May the prompt of a request be computed in several steps?"""
        ...

    def choose(self, now_s: float, scheduler: Scheduler, lane: BatchLane) -> bool:
        """Put together `scheduler.batch` for a lane: with `reserve_decodes`, `prefill`, `admit` and `preempt`; behind the
        first with `reserve_proposals`, where a decoder is to be heard. Do those who decode take part (they then have their
        blocks)? A step of theirs alone may be repeated until something changes."""
        ...
