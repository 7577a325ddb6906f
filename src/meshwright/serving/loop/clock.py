"""Clocks of a loop: the wall's, and one that stands still until it is told what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells a loop the time, in seconds from when it began."""

    def now_s(self) -> float:
        """What time it is."""
        ...

    def reach(self, time_s: float) -> None:
        """It is at least `time_s` now."""
        ...


class VirtualClock:
    """Goes where it is told to go, and never back."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """What time it is."""
        return self._now_s

    def reach(self, time_s: float) -> None:
        """Go there."""
        self._now_s = max(self._now_s, time_s)


class WallClock:
    """The machine's."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        """What time it is."""
        return time.monotonic() - self._began_s

    def reach(self, time_s: float) -> None:
        """Wait until then."""
        left_s = time_s - self.now_s()
        if left_s > 0.0:  # to sleep for nothing is to give the processor away
            time.sleep(left_s)
