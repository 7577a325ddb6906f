"""What a load did, in the field's figures: one definition each, over all requests that were to be measured.

TTFT: time to first token, from arrival, queueing included. TPOT: time per output token behind the first, of one request.
ITL: the time between one token and the next, of all gaps. Goodput: requests a second that met every objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.serving.loop.request_log import RequestLog, RequestRecord

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class LatencyObjective:
    """Service-level objectives of a request, in seconds; infinity: none."""

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    e2e_s: float = float("inf")

    def is_met(self, record: RequestRecord) -> bool:
        """Did it end, in time? A request that did not get there has not."""
        tpot_s = record.tpot_s if record.num_tokens > 1 else 0.0
        is_done = record.reason in ("stop", "length")
        return (
            is_done and record.ttft_s <= self.ttft_s and tpot_s <= self.tpot_s and record.e2e_s <= self.e2e_s
        )


@dataclass(frozen=True)
class LoadReport:
    """Figures of a load; percentiles in seconds.

    Args:
        num_requests: that came; those refused are among them.
        num_refused: that could never be served.
        num_finished: that got all their tokens.
        duration_s: from the first arrival to the last token.
        output_tokens_per_s, input_tokens_per_s: over the duration.
        ttft_s, tpot_s, itl_s, e2e_s, queue_s: "mean" and percentiles.
        goodput_per_s: requests a second that met the objective.
        num_preemptions, num_cached_tokens: in all.
    """

    num_requests: int
    num_refused: int
    num_finished: int
    duration_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    itl_s: Mapping[str, float]
    e2e_s: Mapping[str, float]
    queue_s: Mapping[str, float]
    goodput_per_s: float
    num_preemptions: int
    num_cached_tokens: int

    @property
    def good_share(self) -> float:
        """Of all requests, those that met the objective."""
        return self.goodput_per_s * self.duration_s / self.num_requests if self.num_requests else 0.0

    @classmethod
    def of(cls, logs: Sequence[RequestLog], objective: LatencyObjective = LatencyObjective()) -> LoadReport:
        """Of one loop, or of several that served one load."""
        records = [record for log in logs for record in log.records]
        never = sum(len(log.never) for log in logs)
        done = [record for record in records if record.reason in ("stop", "length")]
        begin_s = min((record.request.arrival_s for record in records), default=0.0)
        duration_s = max((record.end_s for record in done), default=begin_s) - begin_s
        per_s = 1.0 / duration_s if duration_s > 0 else 0.0
        return cls(
            num_requests=len(records) + never,
            num_refused=never,
            num_finished=len(done),
            duration_s=duration_s,
            output_tokens_per_s=sum(record.num_tokens for record in done) * per_s,
            input_tokens_per_s=sum(record.request.num_prompt_tokens for record in done) * per_s,
            ttft_s=figures([record.ttft_s for record in done]),
            tpot_s=figures([record.tpot_s for record in done if record.num_tokens > 1]),
            itl_s=_gaps(logs),
            e2e_s=figures([record.e2e_s for record in done]),
            queue_s=figures([record.begun_s - record.request.arrival_s for record in done]),
            goodput_per_s=sum(map(objective.is_met, done)) * per_s,
            num_preemptions=sum(record.num_preemptions for record in records),
            num_cached_tokens=sum(record.num_cached for record in records),
        )


def figures(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Mean and percentiles (the least value that so many percent reach, each counted `weights` times); NaN of nothing."""
    if not len(values):
        return dict.fromkeys(("mean", *PERCENTILES), float("nan"))
    array = np.asarray(values, dtype=np.float64)
    counts = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    reached = np.cumsum(counts[order]) / counts.sum()
    places = {name: int(np.searchsorted(reached, share / 100 - 1e-12)) for name, share in PERCENTILES.items()}
    found = {name: float(array[order[min(place, len(array) - 1)]]) for name, place in places.items()}
    return {"mean": float(np.average(array, weights=counts)), **found}


def _gaps(logs: Sequence[RequestLog]) -> dict[str, float]:
    """Between one token and the next of whoever decodes."""
    gaps = [gap_s for log in logs for gap_s in log.steps.gap_s]
    weights = [
        num * decodes for log in logs for num, decodes in zip(log.steps.num_steps, log.steps.num_decodes)
    ]
    told = [place for place, weight in enumerate(weights) if weight]
    return figures([gaps[place] for place in told], [weights[place] for place in told])
