"""The counted queue between the two halves of a split backward: input gradients now, weight gradients later.

Every operation with parameters (linear, norms, embedding) computes its weight gradient by itself instead of
returning it to autograd. `deliver` either accumulates it into `parameter.grad` at once (an unsplit backward,
B) or leaves what it needs on the queue of that microbatch (the input half, I) until `run` (the weight
half, W). Nothing looks into or cuts the autograd graph, and a forward counts what a weight half owes, so a
lost weight gradient is an error and never a silently smaller gradient.

    queue = WeightGradientQueue("stage 1, microbatch 3")
    with registering(queue):
        y_BSE = stage(x_BSE)
    with deferring(queue):
        torch.autograd.backward(y_BSE, dy_BSE)      # I: x_BSE.grad is there, no parameter has changed
    queue.run()                                     # W

The idea is the WeightGradStore of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023, arXiv 2401.10241).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from meshwright.specs.error import ExecutionError

Accumulate = Callable[..., None]

_registering: ContextVar[WeightGradientQueue | None] = ContextVar("registering", default=None)


class WeightGradientQueue:
    """Weight-gradient work of one stage and one microbatch, first in first out.

    `name` appears in error messages. A queue is carried by the autograd nodes of the forward it counted, so
    it is found again in whichever thread autograd runs the backward, and two microbatches never share one.
    """

    __slots__ = ("name", "num_registered", "is_deferring", "_entries")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.num_registered = 0
        self.is_deferring = False
        self._entries: deque[tuple[Accumulate, tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        """Number of operations whose weight gradient is still owed."""
        return len(self._entries)

    def push(self, accumulate: Accumulate, arguments: tuple[Any, ...]) -> None:
        """Owe `accumulate(*arguments)`; the arguments (input, output gradient) stay alive until then."""
        self._entries.append((accumulate, arguments))

    def owed(self) -> Iterator[Tensor]:
        """Tensors that it keeps alive, parameters left out."""
        for _, arguments in self._entries:
            for argument in arguments:
                if isinstance(argument, Tensor) and not isinstance(argument, torch.nn.Parameter):
                    yield argument

    def pending_bytes(self) -> int:
        """Bytes of the distinct storages that the queue keeps alive, parameters left out."""
        storages: dict[int, int] = {}
        for argument in self.owed():
            storage = argument.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def run(self) -> int:
        """Compute and accumulate every owed weight gradient, in the order it was pushed (W).

        Returns the number of operations. Each entry is dropped as soon as it is done, so memory falls
        while it runs. Raises ExecutionError, before anything is accumulated, where the count differs from
        what the forward registered.
        """
        self._check_count()
        num_run = len(self._entries)
        with torch.no_grad():
            while self._entries:
                accumulate, arguments = self._entries.popleft()
                accumulate(*arguments)
        self.num_registered = 0
        return num_run

    def _check_count(self) -> None:
        name = self.name or "unnamed"
        if self.num_registered == 0:
            raise ExecutionError(
                f"weight-gradient queue ({name}): no operation of a forward was registered on it",
                next="run the forward (or its recompute) inside registering(queue), once for every run()",
            )
        if len(self._entries) != self.num_registered:
            raise ExecutionError(
                f"weight-gradient queue ({name}): {len(self._entries)} weight gradients are owed, "
                f"but the forward registered {self.num_registered}",
                allowed="exactly one for every operation with parameters",
                next="run one backward over the whole output inside deferring(queue) between F and W",
            )


@contextmanager
def registering(queue: WeightGradientQueue) -> Iterator[WeightGradientQueue]:
    """Count on `queue` every operation with parameters whose forward runs inside, with gradients enabled."""
    token = _registering.set(queue)
    try:
        yield queue
    finally:
        _registering.reset(token)


@contextmanager
def deferring(queue: WeightGradientQueue) -> Iterator[WeightGradientQueue]:
    """A backward inside computes input gradients only; weight gradients of `queue`'s forward are owed."""
    before = queue.is_deferring
    queue.is_deferring = True
    try:
        yield queue
    finally:
        queue.is_deferring = before


def registered_queue(*parameters: Tensor | None) -> WeightGradientQueue | None:
    """The queue of the surrounding `registering`, with one operation counted if its weight gradient is due.

    None outside of `registering`, without gradients, and where no parameter trains.
    """
    queue = _registering.get()
    if queue is None or not torch.is_grad_enabled():
        return None
    if not any(parameter is not None and parameter.requires_grad for parameter in parameters):
        return None
    queue.num_registered += 1
    return queue


def deliver(queue: WeightGradientQueue | None, accumulate: Accumulate, *arguments: Any) -> None:
    """Run `accumulate(*arguments)` now, or owe it to a queue that is deferring.

    Raises ExecutionError under create_graph=True: what is accumulated here has no gradient of its own.
    """
    if torch.is_grad_enabled():
        raise ExecutionError(
            "a second derivative was asked for (create_graph=True) of an operation with split backward",
            allowed="first derivatives",
            next="use torch's own modules for that part of the model",
        )
    if queue is not None and queue.is_deferring:
        queue.push(accumulate, arguments)
    else:
        accumulate(*arguments)


def accumulate_into(parameter: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to `parameter.grad`, which becomes it where there is none yet."""
    if parameter.grad is None:
        parameter.grad = gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)
