"""One pool of four gloo workers for each testing process: import the fixture in the conftest of folders that run jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # every test's conftest reads this file, and torch takes seconds
    from meshwright.executor.job.pool import Pool

NUM_WORKERS = 4
HELD_THREADS = 3  # of an idle worker: those of the last group, which torch holds
IDLE_THREADS = (
    2 + HELD_THREADS
)  # and its own, and the one that listens; within a job of four processes it has 18
SETTLED_S = 60.0
_open: list[Pool] = []
_users = 0
_told: set[str] = set()  # threads that a file was blamed for


@pytest.fixture(scope="session")
def gloo_pool() -> Iterator[Pool]:
    """The pool; folders that import this fixture share it, the last to finish ends it."""
    from meshwright.executor.job.pool import Pool

    global _users
    if not _open:
        _open.append(Pool(NUM_WORKERS).__enter__())
    _users += 1
    yield _open[0]
    _users -= 1
    if not _users:
        _open.pop().__exit__(None, None, None)


def thread_ids(pool: Pool) -> list[set[str]]:
    """Of every worker (Linux; elsewhere none)."""
    folders = [Path(f"/proc/{worker}/task") for worker in pool.process_ids]
    return [{task.name for task in folder.iterdir()} if folder.is_dir() else set() for folder in folders]


def assert_idle() -> None:
    """No process group outlives its job: its threads would wake a hundred times a second until the worker ends.

    Asked behind every file of tests, and told once: later nobody knows whose they were. A worker lets go of a job after its
    last report.
    """
    until_s = time.monotonic() + SETTLED_S
    for pool in _open:
        while (found := max((len(ids - _told) for ids in thread_ids(pool)), default=0)) > IDLE_THREADS:
            if time.monotonic() > until_s:
                _told.update(*thread_ids(pool))
                pytest.fail(
                    f"a worker of the pool is idle and has {found} threads, {IDLE_THREADS} are its own"
                )
            time.sleep(0.01)
