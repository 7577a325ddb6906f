"""Short sequences packed into what a rank, or several together, hold: best fit, the longest first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def packed(lengths: Sequence[int], numbers: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Packs of at most `capacity` tokens: longest first, each where it leaves the least room (best fit decreasing). What is
    longer than that is alone."""
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # room and number of every pack that has some
    for number in sorted(numbers, key=lambda one: (-lengths[one], one)):
        place = bisect_left(rooms, (lengths[number], -1))
        if place == len(rooms):
            room, pack = capacity, len(packs)
            packs.append([])
        else:
            room, pack = rooms.pop(place)
        packs[pack].append(number)
        if room > lengths[number]:
            insort(rooms, (room - lengths[number], pack))
    return [tuple(pack) for pack in packs]
