"""The corpus that studies train on: bytes of the Python standard library, read once a process."""

from __future__ import annotations

from functools import lru_cache

from meshwright.executor.data.corpus import Corpus


@lru_cache(maxsize=1)
def byte_corpus() -> Corpus:
    """Its train and held-out files. Raises ExecutionError where Python was installed without sources."""
    return Corpus.standard_library()
