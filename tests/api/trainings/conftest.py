"""Fixtures of trainings: the pool of gloo workers that tests of a process share."""

from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]
