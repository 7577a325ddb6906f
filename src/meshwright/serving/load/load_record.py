"""What became of each request that was sent, and the figures of all: a request that failed is in every percentile."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.serving.loop.report import LatencyObjective, figures

NUMBER = re.compile(r"\d+")
NEVER = float("inf")  # how long a client waits for what did not come


@dataclass(slots=True)
class LoadRecord:
    """One request; seconds on the generator's clock.

    Args:
        due_s: when it was to be sent; latencies count from here, so that a slow server cannot slow what it is asked.
        sent_s: when it was.
        token_s: when events with tokens came.
        end_s: when its end came.
        num_prompt_tokens, num_tokens: as the server counts them, else as asked and as events came.
        error: why it failed; "": it did not.
    """

    due_s: float
    sent_s: float = NEVER
    token_s: list[float] = field(default_factory=list)
    end_s: float = NEVER
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Did it get there?"""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_s[0] - self.due_s if self.is_good and self.token_s else NEVER

    @property
    def tpot_s(self) -> float:
        """Time per output token behind the first; 0 where there is none."""
        if not self.is_good or not self.token_s:
            return NEVER
        return (self.token_s[-1] - self.token_s[0]) / max(1, self.num_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Until its end."""
        return self.end_s - self.due_s if self.is_good else NEVER

    @property
    def gaps_s(self) -> list[float]:
        """Between one event with tokens and the next; of a failed request one that never ended."""
        gaps = [later - sooner for sooner, later in zip(self.token_s, self.token_s[1:])]
        return gaps if self.is_good else [*gaps, NEVER]

    def meets(self, objective: LatencyObjective) -> bool:
        """Was it in time?"""
        is_in_time = self.ttft_s <= objective.ttft_s and self.e2e_s <= objective.e2e_s
        return self.is_good and is_in_time and (self.num_tokens < 2 or self.tpot_s <= objective.tpot_s)


@dataclass(frozen=True)
class LoadFigures:
    """Of all requests. A percentile that a failed request decides is infinite: so many did not get there.

    Args:
        num_requests, num_finished: sent, and those that got there.
        duration_s: from the first that was due to the last end.
        errors: how many failed of each reason.
        send_lag_s: how late requests were sent; large, it is the generator that is slow.
    """

    num_requests: int
    num_finished: int
    duration_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    itl_s: Mapping[str, float]
    e2e_s: Mapping[str, float]
    goodput_per_s: float
    send_lag_s: Mapping[str, float]
    errors: Mapping[str, int]

    @classmethod
    def of(cls, records: Sequence[LoadRecord], objective: LatencyObjective) -> LoadFigures:
        """Of at least one record."""
        good = [each for each in records if each.is_good]
        begin_s = min(each.due_s for each in records)
        duration_s = max((each.end_s for each in good), default=begin_s) - begin_s
        per_s = 1.0 / duration_s if duration_s > 0 else 0.0
        return cls(
            num_requests=len(records),
            num_finished=len(good),
            duration_s=duration_s,
            output_tokens_per_s=sum(each.num_tokens for each in good) * per_s,
            input_tokens_per_s=sum(each.num_prompt_tokens for each in good) * per_s,
            ttft_s=figures([each.ttft_s for each in records]),
            tpot_s=figures([each.tpot_s for each in records if not each.is_good or each.num_tokens > 1]),
            itl_s=figures([gap for each in records for gap in each.gaps_s]),
            e2e_s=figures([each.e2e_s for each in records]),
            goodput_per_s=sum(each.meets(objective) for each in records) * per_s,
            send_lag_s=figures([each.sent_s - each.due_s for each in records if each.sent_s < NEVER]),
            errors=_counted([each.error for each in records if each.error]),
        )


def _counted(errors: Sequence[str]) -> dict[str, int]:
    """How many there were of each kind, the most first: errors that differ in numbers only are one, told by its first."""
    first: dict[str, str] = {}
    kinds = [NUMBER.sub("0", error) for error in errors]
    for kind, error in zip(kinds, errors, strict=True):
        first.setdefault(kind, error)
    return {first[kind]: num for kind, num in Counter(kinds).most_common()}
