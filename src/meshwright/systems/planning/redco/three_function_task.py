"""Handlers of CALL_DATA, CALL_LOSS, CALL_PREDICT and what goes around them, for tasks of three functions of a user.

`options` of the job: `task` (a name of `TASKS`) and `arguments` of it, `num_data_parallel`, `num_microbatches`, and
`predict_every`: in other steps CALL_PREDICT gives an empty tensor and asks nobody. The module that is given as the job's
handlers registers tasks with `task`.

Shapes: N parameters, flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Row, handles
from meshwright.specs.error import UnknownNameError
from meshwright.systems.planning.redco.three_functions import (
    CALL_DATA,
    CALL_LOSS,
    CALL_PREDICT,
    REDUCE_USER,
    USER_STEP,
)

BETAS, EPSILON = (0.9, 0.999), 1e-8
handles(REDUCE_USER)(all_reduce)


class Task(Protocol):
    """What a user writes, and the rate of Adam. `key` is different for every step, device and microbatch."""

    rate: float

    def first(self) -> Tensor:
        """Flat parameters before the first step."""
        ...

    def data(self, key: tuple[int, int, int], parameters_N: Tensor) -> Any:
        """A batch; an agent acts with its parameters to get one."""
        ...

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """A number that torch can differentiate."""
        ...

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Whatever is wanted of the parameters."""
        ...


TASKS: dict[str, Callable[..., Task]] = {}


def task(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Register a task by name; it is made with the arguments of the job, `rank` and `num_ranks`."""

    def register(make: Callable[..., Task]) -> Callable[..., Task]:
        TASKS[name] = make
        return make

    return register


def make_task(name: str, **arguments: Any) -> Task:
    """A task by name. Raises UnknownNameError."""
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    return TASKS[name](**arguments)


def _task(context: Any) -> Task:
    if "task" not in context.state:
        options = context.options
        context.state["task"] = make_task(
            options["task"], rank=context.rank, num_ranks=context.num_ranks, **options["arguments"]
        )
    found: Task = context.state["task"]
    return found


@handles(CALL_DATA)
def call_data(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The user's batch of a microbatch."""
    ((parameters_N,),) = inputs
    place = context.coordinates.get("dp", 0)
    return (_task(context).data((context.iteration, place, row.microbatch), parameters_N.detach()),)


@handles(CALL_LOSS)
def call_loss(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient and loss of a batch, a share of those of the step."""
    batch, (parameters_N,) = inputs
    leaf_N = parameters_N.detach().requires_grad_()
    share = context.options["num_data_parallel"] * context.options["num_microbatches"]
    loss = _task(context).loss(leaf_N, batch) / share
    (gradient_N,) = torch.autograd.grad(loss, leaf_N)
    return (gradient_N,), loss.detach()


@handles(CALL_PREDICT)
def call_predict(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The user's prediction with the stepped parameters."""
    ((parameters_N,),) = inputs
    if (context.iteration + 1) % context.options["predict_every"]:
        return (parameters_N.new_empty(0),)
    return (_task(context).predict(parameters_N.detach()),)


@handles(USER_STEP)
def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Adam."""
    (gradient_N,), (parameters_N,), (state_2N,) = inputs
    count = context.iteration + 1
    first = state_2N[0].lerp(gradient_N, 1 - BETAS[0])
    second = state_2N[1].lerp(gradient_N**2, 1 - BETAS[1])
    change = first / (1 - BETAS[0] ** count) / ((second / (1 - BETAS[1] ** count)).sqrt() + EPSILON)
    return (parameters_N - _task(context).rate * change,), (torch.stack([first, second]),)
