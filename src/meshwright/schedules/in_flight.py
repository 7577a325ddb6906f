"""`in_flight`: how many microbatches a device keeps at once in a schedule's order; walked once and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshwright.schedules.order import Compute, Pairs, Schedule


@dataclass(frozen=True)
class InFlight:
    """A moment of a device's order at which no other has more: for each of its stages the number of microbatches
    between F and the end of their backward, and between I and W."""

    stages: tuple[int, ...]
    saved: tuple[int, ...]
    pending: tuple[int, ...]


@lru_cache(maxsize=256)
def in_flight(
    schedule: Schedule, num_devices: int, num_microbatches: int, num_chunks: int, pairs: Pairs = ""
) -> tuple[tuple[InFlight, ...], ...]:
    """For every device the moments of its order that may be its peak, whatever its stages keep. `pairs`: neighbours that run
    beside each other, whose forward has begun before its neighbour's backward ends."""
    orders = schedule.orders(num_devices, num_microbatches, num_chunks)
    return tuple(_walk(_forward_first(row) if pairs == "backward first" else row) for row in orders)


def _forward_first(row: Sequence[Compute]) -> list[Compute]:
    """An order in which every forward stands before the backward of another microbatch in front of it."""
    found = list[Compute]()
    for each in row:
        place = len(found)
        while place and each.name == "F" and _is_of_unit(found[place - 1], found[-1], each):
            place -= 1
        found.insert(place, each)
    return found


def _is_of_unit(before: Compute, last: Compute, forward: Compute) -> bool:
    """Is it of the backward in front of the forward, of another microbatch?"""
    is_same = before[1:] == last[1:]  # stage and microbatch
    return is_same and before.name != "F" and before.microbatch != forward.microbatch


def _walk(row: Sequence[Compute]) -> tuple[InFlight, ...]:
    stages = tuple(sorted({compute.stage for compute in row}))
    place = {stage: k for k, stage in enumerate(stages)}
    counts = [0] * (2 * len(stages))
    seen, is_more = set(), False
    for name, stage, _ in row:
        k = place[stage]
        if name in ("B", "W"):
            if is_more:  # than before and behind: only such a moment may be the peak
                seen.add(tuple(counts))
            counts[k] -= 1
        if name == "W":
            counts[len(stages) + k] -= 1
        if name == "F":
            counts[k] += 1
        elif name == "I":
            counts[len(stages) + k] += 1
        is_more = name in ("F", "I") or (is_more and name not in ("B", "W"))
    if is_more:
        seen.add(tuple(counts))
    tops = _undominated(seen)
    return tuple(InFlight(stages, top[: len(stages)], top[len(stages) :]) for top in tops)


def _undominated(seen: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that no other exceeds in every place; few, as a device has few stages."""
    tops: list[tuple[int, ...]] = []
    for counts in sorted(seen, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(counts, top, strict=True)) for top in tops):
            tops.append(counts)
    return tops
