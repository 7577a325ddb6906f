"""A pool for a study: the one that a caller has, or one for this time only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.executor.job.pool import Pool


@contextmanager
def opened_pool(pool: Pool | None, num_processes: int) -> Iterator[Pool]:
    """`pool`, which stays open, or a new one of so many processes, which ends with the context."""
    if pool is not None:
        yield pool
        return
    with Pool(num_processes) as own:
        yield own
