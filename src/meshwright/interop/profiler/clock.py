"""Several ranks' clocks as one: collectives that all members end at the same moment say how far clocks are apart."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from meshwright.interop.profiler.naming import TOGETHER
from meshwright.interop.profiler.rank_spans import RankSpans

Key = tuple[str, str, int, int]  # group, name, step, which of these


def offsets_of(ranks: Sequence[RankSpans]) -> tuple[list[float], list[int]]:
    """Seconds to add to the times of each file for one clock, and the ranks whose clock is as their host had it.

    Clocks are those of the hosts (`baseTimeNanoseconds`) where no collective says more. A collective is the same one on two
    ranks by its group, name, step and number in it. Where a file names no groups, all ranks are one where there are two.
    """
    earliest = min(rank.file.base_s for rank in ranks)
    hosts = [rank.file.base_s - earliest for rank in ranks]
    ends = [
        {key: end + host for key, end in _collectives(rank, len(ranks)).items()}
        for rank, host in zip(ranks, hosts)
    ]
    corrections: dict[int, float] = {0: 0.0}
    waiting = deque([0])
    while waiting:
        known = waiting.popleft()
        for other in range(len(ranks)):
            common = ends[known].keys() & ends[other].keys()
            if other in corrections or not common:
                continue
            apart = float(np.median([ends[known][key] - ends[other][key] for key in common]))
            corrections[other] = corrections[known] + apart
            waiting.append(other)
    unset = [rank.rank for place, rank in enumerate(ranks) if place not in corrections]
    return [host + corrections.get(place, 0.0) for place, host in enumerate(hosts)], unset


def _collectives(rank: RankSpans, num_ranks: int) -> dict[Key, float]:
    """Ends of the collectives of a rank that end together on all members."""
    seen: Counter[tuple[str, str, int]] = Counter()
    found: dict[Key, float] = {}
    for span in rank.spans:
        name = span.name.name
        if name in TOGETHER and (span.group or num_ranks == 2):
            key = (span.group, name, rank.steps[span.step])
            found[(*key, seen[key])] = span.end_s
            seen[key] += 1
    return found
