"""One pool of four gloo workers for each testing process: import the fixture in the conftest of folders that run jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshwright.executor.job.pool import Pool

NUM_WORKERS = 4
_open: list[Pool] = []
_users = 0


@pytest.fixture(scope="session")
def gloo_pool() -> Iterator[Pool]:
    """The pool; folders that import this fixture share it, the last to finish ends it."""
    global _users
    if not _open:
        _open.append(Pool(NUM_WORKERS).__enter__())
    _users += 1
    yield _open[0]
    _users -= 1
    if not _users:
        _open.pop().__exit__(None, None, None)
