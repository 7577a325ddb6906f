"""A module tree cut by tensor rules, whose layers exchange on a process group; and handlers of CALL_DATA, CALL_LOSS,
CALL_PREDICT and what goes around them, for tasks of three functions of a user.

`options` of the job: `task` (a name of `TASKS`) and `arguments` of it, `num_data_parallel`, `num_microbatches`, and
`predict_every`: in other steps CALL_PREDICT gives an empty tensor and asks nobody. A module that owns words of the
program's vocabulary adds tasks to TASKS.

Shapes: B samples, S tokens, E width, V vocabulary (with padding), and what a device has of them; N parameters, flat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.functional_adamw import adamw
from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.specs.error import UnknownNameError
from meshwright.systems.planning.redco.mechanism import (
    CALL_DATA,
    CALL_LOSS,
    CALL_PREDICT,
    REDUCE_USER,
    USER_STEP,
    Role,
    TensorRule,
    Tree,
    TreeParameter,
)


class InOutLinear(nn.Module):
    """A linear layer whose weight is [inputs, outputs], as GPT-2's are."""

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


SUMMED: Counter[str] = Counter()  # forward all-reduces by path of the layer; whoever counts clears it
MINUS_INFINITY = float("-inf")


def module_tree(model: nn.Module) -> Tree:
    """Names, shapes and roles of a module's parameters, each tied one once."""
    return tuple(
        TreeParameter(
            name, tuple(p.shape), _role(model.get_submodule(name.rpartition(".")[0]), p), p.itemsize
        )
        for name, p in model.named_parameters()
    )


def _role(module: nn.Module, parameter: Tensor) -> Role:
    if parameter.dim() == 1:
        return "vector"
    if isinstance(module, nn.Embedding):
        return "table"
    if isinstance(module, nn.Linear):
        return "linear"
    # the transformers library has such a layer of its own
    return (
        "linear_in_out" if isinstance(module, InOutLinear) or type(module).__name__ == "Conv1D" else "other"
    )


def cut(parameter: Tensor, rule: TensorRule, rank: int, num_shards: int) -> Tensor:
    """What a device has of a parameter: of every section, its part; of what is padded, zeros behind the end."""
    if rule.dim is None:
        return parameter.detach().clone()
    dim, size = rule.dim, parameter.shape[rule.dim]
    if rule.rows:
        padding = [0, 0] * (parameter.dim() - 1 - dim) + [0, rule.rows - size]
        parameter, size = F.pad(parameter.detach(), padding), rule.rows
    sections = rule.sections or (size,)
    parts = torch.split(parameter.detach(), list(sections), dim)
    return torch.cat([part.chunk(num_shards, dim)[rank] for part in parts], dim).clone()


class _Copy(torch.autograd.Function):
    """The same forwards; backwards the sum over the devices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    """The sum over the devices; backwards the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Gather(torch.autograd.Function):
    """Parts of the last dimension side by side; backwards the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


def copied(x: Tensor) -> Tensor:
    """What every device has, on its way into parts."""
    return cast(Tensor, _Copy.apply(x))  # type: ignore[no-untyped-call]


def summed(x: Tensor, path: str) -> Tensor:
    """The sum of what the devices have; counted."""
    SUMMED[path] += 1
    return cast(Tensor, _Sum.apply(x))  # type: ignore[no-untyped-call]


def gathered(x: Tensor) -> Tensor:
    """What the devices have, side by side."""
    return cast(Tensor, _Gather.apply(x))  # type: ignore[no-untyped-call]


class PartLinear(nn.Module):
    """A device's part of a linear layer, by its rule."""

    def __init__(
        self, layer: nn.Module, path: str, rule: TensorRule, num_outputs: int, num_shards: int
    ) -> None:
        super().__init__()
        self.path, self.rule, self.num_outputs, self.num_shards = path, rule, num_outputs, num_shards
        self.is_reversed = not isinstance(layer, nn.Linear)
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """Column and gathered: outputs of this device, or all; row: the sum; shared: whole, gradients summed."""
        weight = cast(Tensor, self.weight.T if self.is_reversed else self.weight)
        bias = cast("Tensor | None", self.bias)
        if self.rule.cut == "row":
            total = summed(F.linear(x, weight), self.path)
            return total if bias is None else total + bias
        if self.rule.is_shared:
            weight, bias = copied(weight), None if bias is None else copied(bias)
        part = F.linear(copied(x), weight, bias)
        return gathered(part)[..., : self.num_outputs] if self.rule.cut == "gathered" else part


class PartTable(nn.Module):
    """A device's rows of a lookup; as a tied head, its share of the logits, gathered."""

    def __init__(self, table: nn.Embedding, path: str, num_rows: int, first_row: int) -> None:
        super().__init__()
        self.path, self.num_rows, self.first_row = path, num_rows, first_row
        self.weight = table.weight

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Rows of all tokens: those that other devices have come by the sum."""
        local = tokens_BS - self.first_row
        is_here = (local >= 0) & (local < len(self.weight))
        rows = self.weight[local.where(is_here, 0)] * is_here[..., None]
        return summed(rows, self.path)

    def logits(self, x_BSE: Tensor) -> Tensor:
        """Of all rows but the padding."""
        return gathered(copied(x_BSE) @ self.weight.T)[..., : self.num_rows]


def shard(model: nn.Module, rules: Mapping[str, TensorRule], rank: int, num_shards: int) -> nn.Module:
    """The same module with the parts of one device, changed in place."""
    sizes = {one.name: one for one in module_tree(model)}
    for name, one in sizes.items():
        rule, path = rules[name], one.module
        layer = model.get_submodule(path)
        setattr(
            layer,
            name.rpartition(".")[2],
            nn.Parameter(cut(model.get_parameter(name), rule, rank, num_shards)),
        )
        if name.endswith(".weight") and (rule.dim is not None or rule.is_shared):
            _replace(model, path, _part(layer, one, rule, rank, num_shards))
    for module in model.modules():
        if isinstance(module, HeadPlace):
            _place_heads(module, rank)
    return model


def _part(layer: nn.Module, one: TreeParameter, rule: TensorRule, rank: int, num_shards: int) -> nn.Module:
    if isinstance(layer, nn.Embedding):
        return PartTable(layer, one.module, one.shape[0], rank * (rule.rows // num_shards))
    return PartLinear(layer, one.module, rule, one.num_outputs, num_shards)


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _place_heads(module: HeadPlace, rank: int) -> None:
    """Heads of a device stand behind those of the devices before it; whole keys and values begin with the first."""
    for name, child in module.named_children():
        if not isinstance(child, PartLinear) or child.rule.cut != "column":
            continue
        first = rank * (child.rule.sections[0] // child.num_shards // module.head_dim)
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
