"""Operands that a backward gets once more instead of keeping them: what was gathered for a product is gathered again.

with fetching_again(tensor) as again:
    y = linear(tensor, weight)         # keeps a place, not the tensor
again.value = gathered_once_more
torch.autograd.backward(y, dy)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor


class FetchedAgain:
    """The place of a tensor: ``value`` is there while a backward runs. ``tensor`` is what stands for it in the forward."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self.value: Tensor | None = None


_fetching: ContextVar[FetchedAgain | None] = ContextVar("fetching", default=None)


@contextmanager
def fetching_again(tensor: Tensor) -> Iterator[FetchedAgain]:
    """Products of `tensor` inside keep its place only, which is to have a value before their backward."""
    again = FetchedAgain(tensor)
    token = _fetching.set(again)
    try:
        yield again
    finally:
        _fetching.reset(token)
        again.tensor = None


def again_of(x: Tensor) -> FetchedAgain | None:
    """The place of an operand that is fetched again; None: it is to be kept."""
    again = _fetching.get()
    return again if again is not None and again.tensor is x else None
