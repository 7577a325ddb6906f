"""Pools of gloo workers: the shared one, and one that a test may break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshwright.executor.job.pool import Pool
from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool", "own_pool"]


@pytest.fixture(scope="module")
def own_pool() -> Iterator[Pool]:
    """Two workers for the tests of one file that end them; the next test starts new ones."""
    with Pool(2) as pool:
        yield pool
