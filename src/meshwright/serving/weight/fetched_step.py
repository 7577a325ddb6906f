"""What a step takes whose blocks of weights come while others compute, one after the other, into a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class TimedBlock(NamedTuple):
    """Seconds in which a block is computed with, exchanges behind it among them; and in which it comes. 0: it is here."""

    compute_s: float
    load_s: float = 0.0


def fetched_step_s(blocks: Sequence[TimedBlock], window: int) -> float:
    """Seconds of a step in a row of equal ones, blocks in the order of their use.

    The next block comes when the one before it has come and one of the `window` places is free; a place is free when its
    block has been computed with. Of n equal blocks that take c and come in l seconds, and a window of two or more, a step
    takes n max(c, l). Windows end at other blocks in every step, so it is the mean of as many steps as the window has
    places, behind as many.
    """
    come_s = end_s = first_end_s = 0.0
    freed: deque[float] = deque([0.0] * window, window)  # when each place is free, the first one first
    for step in range(2 * window):
        if step == window:
            first_end_s = end_s
        for block in blocks:
            if block.load_s:
                come_s = max(come_s, freed.popleft()) + block.load_s
                end_s = max(end_s, come_s) + block.compute_s
                freed.append(end_s)
            else:
                end_s += block.compute_s
    return (end_s - first_end_s) / window


def window_bytes(sizes: Sequence[float], window: int) -> float:
    """The most that so many fetched blocks in a row are, the first one behind the last: steps follow each other."""
    if not sizes:
        return 0.0
    around = [*sizes, *sizes]
    number = min(window, len(sizes))
    return max(sum(around[first : first + number]) for first in range(len(sizes)))
