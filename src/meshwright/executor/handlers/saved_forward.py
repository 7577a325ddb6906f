"""SavedForward: what a forward keeps for its backward: where its graph begins and ends, and the queue for W.

Inputs enter the graph through a node that keeps nothing (a leaf's accumulator would hold them); it hands out their gradients.
The graph ends in a number without data of the outputs' size: outputs are free once they have been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.ops.fetched_again import FetchedAgain
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue


class SavedForward:
    """The graph of one forward. ``again``: the place of an operand that is fetched once more for the backward."""

    __slots__ = ("queue", "end", "given", "taken", "again")

    def __init__(self, queue: WeightGradientQueue) -> None:
        self.queue = queue
        self.end: Tensor | None = None
        self.given: tuple[Tensor | None, ...] = ()
        self.taken: tuple[Tensor | None, ...] = ()
        self.again: FetchedAgain | None = None

    def begin(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs as the graph has them."""
        if not inputs or not torch.is_grad_enabled():
            return inputs
        self.taken = (None,) * len(inputs)
        some = torch.empty((), device=inputs[0].device, requires_grad=True)
        begun = _Begin.apply(self, some, *inputs)  # type: ignore[no-untyped-call]
        return begun if isinstance(begun, tuple) else (begun,)

    def close(self, *outputs: Tensor) -> None:
        """Nothing follows these."""
        if torch.is_grad_enabled():
            self.end = _End.apply(self, *outputs)  # type: ignore[no-untyped-call]

    def run_backward(self, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Backward of the whole graph from the gradients of its outputs; those of the inputs. Frees the graph."""
        end = self.end
        assert end is not None, "one backward for each forward: the program's values see to it"
        self.given, self.end = gradients, None
        if end.requires_grad:  # nothing does in a first stage that is frozen
            torch.autograd.backward(end)
        taken, self.given, self.taken = self.taken, (), ()
        return taken


class _Begin(torch.autograd.Function):
    """Begins a graph; its backward leaves the gradients with `SavedForward`."""

    @staticmethod
    def forward(ctx: Any, saved: SavedForward, some: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.saved = saved
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.saved.taken = gradients
        return (None,) * (2 + len(gradients))


class _End(torch.autograd.Function):
    """Ends a graph in a number; its backward takes the outputs' gradients from `SavedForward`."""

    @staticmethod
    def forward(ctx: Any, saved: SavedForward, *outputs: Tensor) -> Tensor:
        ctx.saved = saved
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.saved.given = ctx.saved.given, ()
        return None, *gradients


def contributions(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Gradients of several values, none of which is the memory of another: autograd hands out one tensor for both terms of a
    sum, and who adds to what it was given would change the other."""
    seen: set[int] = set()
    found: list[Tensor | None] = []
    for each in gradients:
        is_twice = each is not None and each.data_ptr() in seen
        found.append(each.clone() if is_twice and each is not None else each)
        if each is not None:
            seen.add(each.data_ptr())
    return tuple(found)
