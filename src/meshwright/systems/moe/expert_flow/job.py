"""CacheComparison: what `meshwright run` says of caches of experts on a routing of one's own."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import ClassVar

import numpy as np

from meshwright.specs.option import option
from meshwright.specs.routing.routing_file import read_routing
from meshwright.specs.training.job_report import JobReport
from meshwright.systems.moe.expert_flow.mechanism import (
    ExpertOrder,
    Learned,
    LeastFrequent,
    LeastRecent,
    SlotCache,
    by_path,
    foretold,
    mean_active,
    requests_of,
    run,
)


@dataclass(frozen=True)
class CacheComparison:
    """Says what caches of experts hit on a routing of yours, up to the bound that none exceeds, before you serve with one."""

    routing: str = option(MISSING, "A routing trace: .npz, .jsonl of Megatron-LM, .npy of ExFlow.")
    slots: int = option(16, "Experts of all layers together that are on a device at once.", least=1)
    batch: int = option(4, "Tokens of a step.", least=1)
    ahead: int = option(2, "Expected experts that come behind each layer, at most.", least=0)
    accuracy: float = option(0.9, "How often the predictor that is told in advance is right.", least=0)
    tokens: int = option(2000, "The first so many of the trace.", least=1)
    runs: ClassVar[str] = "job:compare_caches"


def compare_caches(job: CacheComparison, seed: int, said: object) -> JobReport:
    """Run every cache over the trace. Raises SpecError where it is none."""
    trace = read_routing(job.routing)
    routing_TLK = trace.experts[: job.tokens].astype(np.int64)
    requests = requests_of(routing_TLK, job.batch)
    told, oracle = (foretold(requests, trace.num_experts, each, seed) for each in (job.accuracy, 1.0))
    orders: list[tuple[str, ExpertOrder, int]] = [
        ("least recently used", LeastRecent(), 0),
        ("least frequently used", LeastFrequent(), 0),
        (f"learned transitions, {job.ahead} ahead", Learned(), job.ahead),
        (f"told, right {job.accuracy:.0%} of the time, {job.ahead} ahead", told, job.ahead),
        ("Belady's rule, nothing ahead", foretold(requests, trace.num_experts, 1.0, seed), 0),
        (f"Belady's rule, {job.ahead} ahead: no cache hits more often", oracle, job.ahead),
    ]
    caches = [(name, run(SlotCache(job.slots, order, ahead), requests)) for name, order, ahead in orders]
    regrouped = routing_TLK[by_path(routing_TLK, job.batch)]
    active = {"by_arrival": mean_active(routing_TLK, job.batch), "by_path": mean_active(regrouped, job.batch)}
    lines = [
        f"{len(routing_TLK)} tokens ({trace.origin}), {trace.num_layers} layers of {trace.num_experts} experts, "
        f"{job.slots} places, {job.batch} tokens a step; uses that find their expert, experts that came:",
        *(
            f"{cache.hit_share:7.1%}   {cache.misses + cache.came_ahead:8d}   {name}"
            for name, cache in caches
        ),
        f"experts of a step: {active['by_arrival']:.1f} by arrival, {active['by_path']:.1f} by path where paths are known",
    ]
    data = {
        "origin": trace.origin, "num_tokens": len(routing_TLK), "active_experts": active,
        "caches": [
            {"cache": name, "hits": each.hits, "misses": each.misses, "came_ahead": each.came_ahead} for name, each in caches
        ],
    }  # fmt: skip
    return JobReport(lines, data)
