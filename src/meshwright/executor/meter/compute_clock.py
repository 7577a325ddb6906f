"""The clock by which computes are measured: processor time of the calling thread where it is fine enough.

On an idle machine it equals wall time; on a busy one it leaves out the time in which another process ran, so
that a profile tells what the device can do and not what else was going on. Transfers are timed by the wall.
"""

from __future__ import annotations

import time

# Processor time is counted in ticks of 15.6 ms on some systems; samples are tens of microseconds long.
COARSEST_TICK_S = 1e-6


def _is_fine() -> bool:
    """Does this system count a thread's processor time finely?"""
    try:
        return time.get_clock_info("thread_time").resolution <= COARSEST_TICK_S
    except ValueError:
        return False


compute_seconds = time.thread_time if _is_fine() else time.perf_counter
