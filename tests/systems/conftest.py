"""The shared pool of four gloo workers, for the tests of this folder."""

from tests.gloo_pool import gloo_pool

__all__ = ["gloo_pool"]
