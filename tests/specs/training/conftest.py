"""The shared pool of four gloo workers: a rate of each step is seen where a training takes it."""

from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]
