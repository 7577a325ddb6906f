"""Attention whose heads know their place, for models that are cut; and handlers of CALL_DATA, CALL_LOSS, CALL_PREDICT and
what goes around them, for tasks of three functions of a user.

`options` of the job: `task` (a name of `TASKS`) and `arguments` of it, `num_data_parallel`, `num_microbatches`, and
`predict_every`: in other steps CALL_PREDICT gives an empty tensor and asks nobody. A module that owns words of the
program's vocabulary adds tasks to TASKS.

Shapes: B samples, S tokens, E width, V vocabulary (with padding), and what a device has of them; N parameters, flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.models.cut.cutting import cut_module
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.part_layer import PartLinear
from meshwright.executor.ops.functional_adamw import adamw
from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.executor.team.transport import TorchTransport
from meshwright.specs.error import UnknownNameError
from meshwright.specs.training.tensor_rule import TensorRule
from meshwright.systems.planning.redco.mechanism import (
    CALL_DATA,
    CALL_LOSS,
    CALL_PREDICT,
    REDUCE_USER,
    USER_STEP,
)


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs], by the name that the transformers library has for it."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x weight + bias."""
        return x @ self.weight + self.bias


class HeadPlace(nn.Module):
    """Where an attention's heads stand among all: first query head here, first key-value head here, queries per key."""

    def __init__(self, head_dim: int, group_size: int) -> None:
        super().__init__()
        self.head_dim, self.group_size = head_dim, group_size
        self.first_query, self.first_key = 0, 0

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of [B, S, heads D] projections."""
        q_BHSD, k_BKSD, v_BKSD = (x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for x in (q, k, v))
        heads = (self.first_query + torch.arange(q_BHSD.shape[1])) // self.group_size - self.first_key
        mixed = F.scaled_dot_product_attention(q_BHSD, k_BKSD[:, heads], v_BKSD[:, heads], is_causal=True)
        return mixed.transpose(1, 2).flatten(2)


def everyone(rank: int, num_ranks: int) -> InnerTeam:
    """All processes of the job as those that share a model; where no job runs a model is cut, too, but exchanges nothing.
    The threads of the job's groups live as long as the team: who keeps it must end with the job."""
    return InnerTeam(rank, num_ranks, TorchTransport(dist.group.WORLD))


def cut_by(model: nn.Module, rules: Mapping[str, TensorRule], team: InnerTeam) -> nn.Module:
    """`cut_module`, and where the heads of every attention that asks for it stand among all."""
    model = cut_module(model, rules, team)
    for module in model.modules():
        if isinstance(module, HeadPlace):
            _place_heads(module, team)
    return model


def _place_heads(module: HeadPlace, team: InnerTeam) -> None:
    """Heads of a device stand behind those of the devices before it; whole keys and values begin with the first."""
    for name, child in module.named_children():
        if not isinstance(child, PartLinear) or child.rule.cut != "column":
            continue
        first = team.number * (child.rule.sections[0] // team.degree // module.head_dim)
        if name in ("q_proj", "c_attn"):
            module.first_query = first
        if name in ("k_proj", "c_attn"):
            module.first_key = first


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


TASKS: dict[
    str, Callable[..., Task]
] = {}  # by name; made with the arguments of the job, `rank` and `num_ranks`


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


def call_data(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The user's batch of a microbatch."""
    ((parameters_N,),) = inputs
    place = context.coordinates.get("dp", 0)
    return (_task(context).data((context.iteration, place, row.microbatch), parameters_N.detach()),)


def call_loss(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradient and loss of a batch, a share of those of the step."""
    batch, (parameters_N,) = inputs
    leaf_N = parameters_N.detach().requires_grad_()
    share = context.options["num_data_parallel"] * context.options["num_microbatches"]
    loss = _task(context).loss(leaf_N, batch) / share
    (gradient_N,) = torch.autograd.grad(loss, leaf_N)
    return (gradient_N,), loss.detach()


def call_predict(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The user's prediction with the stepped parameters."""
    ((parameters_N,),) = inputs
    if (context.iteration + 1) % context.options["predict_every"]:
        return (parameters_N.new_empty(0),)
    return (_task(context).predict(parameters_N.detach()),)


def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Adam."""
    (gradient_N,), (parameters_N,), (state_2N,) = inputs
    rate = _task(context).rate
    stepped_N, state_2N = adamw(parameters_N, gradient_N, state_2N, context.iteration + 1, rate)
    return (stepped_N,), (state_2N,)


HANDLERS: Handlers = {
    REDUCE_USER: all_reduce,
    CALL_DATA: call_data,
    CALL_LOSS: call_loss,
    CALL_PREDICT: call_predict,
    USER_STEP: step,
}
