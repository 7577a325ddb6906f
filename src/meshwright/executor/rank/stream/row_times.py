"""Times of the rows of one iteration, and the clock that they are of."""

from __future__ import annotations

import time

clock = time.monotonic  # CLOCK_MONOTONIC on Linux: one clock for all processes of a machine


class Times:
    """Posted, start and end of the rows of one iteration, in seconds of `clock`."""

    __slots__ = ("posted", "start", "end")

    def __init__(self, num_rows: int) -> None:
        self.posted = [0.0] * num_rows
        self.start = [0.0] * num_rows
        self.end = [0.0] * num_rows
