"""SavedForward: what a forward keeps for its backward: where its graph begins and ends, and the queue for W.

Inputs enter the graph through a node that keeps nothing (a leaf's accumulator would hold them); it hands out their gradients.
The graph ends in edges of views of its outputs, which hold none of their data: outputs are free once they have been sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from meshwright.executor.ops.fetched_again import FetchedAgain
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue
from meshwright.executor.state.held_tensors import HeldTensors


class SavedForward:
    """The graph of one forward. ``ends``: where it ends, in the order of its outputs (None: no gradient goes through one), or
    in the loss alone. ``again``: the place of an operand that is fetched once more for the backward. ``held``: what the graph
    keeps, where it leaves the device meanwhile."""

    __slots__ = ("queue", "ends", "taken", "again", "held")

    def __init__(self, queue: WeightGradientQueue) -> None:
        self.queue = queue
        self.ends: tuple[Any, ...] | None = None
        self.taken: tuple[Tensor | None, ...] = ()
        self.again: FetchedAgain | None = None
        self.held: HeldTensors | None = None

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
            self.ends = tuple(_edge(output) for output in outputs)

    def close_in_loss(self, loss: Tensor) -> None:
        """Nothing follows this number, which is kept."""
        self.ends = (loss,)

    def run_backward(self, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Backward of the whole graph from the gradients of its outputs (the loss has none); those of the inputs. Frees the
        graph."""
        ends = self.ends
        assert ends is not None, "one backward for each forward: the program's values see to it"
        self.ends = None
        if len(ends) == 1 and isinstance(ends[0], Tensor):
            roots: list[tuple[Any, Tensor | None]] = [(end, None) for end in ends if end.requires_grad]
        else:
            pairs = zip(ends, gradients, strict=True)
            roots = [(end, own) for end, own in pairs if end is not None and own is not None]
        if roots:  # there are none in a first stage that is frozen
            torch.autograd.backward([end for end, _ in roots], [own for _, own in roots])
        taken, self.taken = self.taken, ()
        return taken


def _edge(output: Tensor) -> GradientEdge | None:
    """Where the gradient of an output goes in. A view's node is torch's own: it keeps the graph alive, and no data."""
    node = output.view_as(output).grad_fn
    return None if node is None else GradientEdge(node, 0)


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


def contributions(
    gradients: Sequence[Tensor | None], owed: Iterable[Tensor] = ()
) -> tuple[Tensor | None, ...]:
    """Gradients of several values, none of which is the memory of another, or of what is `owed` to weights: autograd hands
    out one tensor for both terms of a sum, and who adds to what it was given would change the other."""
    seen = {each.data_ptr() for each in owed}
    found: list[Tensor | None] = []
    for each in gradients:
        is_twice = each is not None and each.data_ptr() in seen
        found.append(each.clone() if is_twice and each is not None else each)
        if each is not None:
            seen.add(each.data_ptr())
    return tuple(found)
