"""A parameter group on one rank: its values, its gradients and what the optimizer steps; whole, or a shard of a flat buffer.

What is kept follows ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054): under ZeRO-1 a rank steps its shard of the group and
gathers the others', under ZeRO-2 it also keeps its shard of the gradients only, under ZeRO-3 its shard of the values, too,
and computes read what was gathered for them. A master copy is what is stepped where parameters have fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshwright.executor.layout.flat_layout import FlatLayout, FlatPiece
from meshwright.executor.ops.optimizer_step import Optimizer, OptimizerConfig
from meshwright.executor.state.canonical_sum import CanonicalSum, Contribution, summed
from meshwright.executor.state.division import Division
from meshwright.executor.state.frozen_shard import FrozenShard
from meshwright.executor.state.host_moments import HostMoments
from meshwright.executor.team.rank_team import RankTeam
from meshwright.ir.table import ParameterGroup

NUM_PARTS = 8  # in which gradients are widened
LEAST_DECAYED_DIMS = 2  # weight decay acts on matrices, not on norms and biases


@dataclass(frozen=True)
class Formats:
    """Of parameters and activations, of gradients as they are summed, and of what the optimizer steps."""

    parameters: torch.dtype = torch.float32
    gradients: torch.dtype = torch.float32
    master: torch.dtype = torch.float32


class Trained(NamedTuple):
    """A tensor that the optimizer steps, and which elements of which parameter it is."""

    tensor: Tensor
    segment: FlatPiece


class GroupState:
    """One group of the program's table on one rank.

    ``values``: the flat buffer that the parameters are views of, where a shard of them is gathered. ``master``: what is
    stepped, flat, where that is not the parameters themselves. ``flat``: gradients of all parameters as views of one
    buffer, where they will be reduced, cast or scattered; else they are the parameters' own. ``sum``: what was added up of
    them, whole or a shard, where they are not summed in ``flat``. ``unscattered``: whole gradients of microbatches that wait
    to be scattered. ``moments``: the optimizer's. ``frozen``: the group's shard of what does not train, where that is
    gathered; ``parameters`` are those that train. ``num_apart``: gradients of microbatches that are kept apart at most on one
    rank, until they are added in canonical order; 0: none.
    """

    def __init__(
        self,
        group: ParameterGroup,
        parameters: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        formats: Formats,
        *,
        is_reduced: bool = False,
        division: Division | None = None,
        num_apart: int = 0,
        frozen: FrozenShard | None = None,
    ) -> None:
        self.group, self.parameters, self.formats = group, dict(parameters), formats
        self.is_reduced, self.division, self.frozen = is_reduced, division, frozen
        self.contributions = CanonicalSum(num_apart) if num_apart else None
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        self.layout = FlatLayout(shapes, division.state.degree if division else 1)
        self.has_master = formats.master != formats.parameters
        self.is_widened = formats.gradients != formats.parameters
        self.flat: Tensor | None = None
        self.sum: Tensor | None = None
        self.unscattered: dict[int, Tensor] = {}
        self.is_live = self.is_finished = False
        self.values: Tensor | None = None
        self.master: Tensor | None = None
        self._place_values()
        self.trained = self._trained()
        self.step = Optimizer(
            [one.tensor for one in self.trained],
            config,
            [_decays(one.segment.name, shapes[one.segment.name]) for one in self.trained],
        )
        self.moments = HostMoments(self.step, [one.tensor for one in self.trained], self.device)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(p.device for p in self._bound_parameters())

    @property
    def own(self) -> tuple[int, int]:
        """The elements of the flat buffer that are stepped here."""
        return self.layout.shard(self.division.place) if self.division else (0, self.layout.num_elements)

    @property
    def own_values(self) -> tuple[int, int]:
        """The elements of the flat buffer that are stepped, within what is kept of the values."""
        low, high = self.own
        if self.division is None:
            return low, high
        first = self.division.values.number * self.division.beside_values.degree * self.layout.shard_size
        return low - first, high - first

    # values ----------------------------------------------------------------------------------------------------------

    def _place_values(self) -> None:
        """Flat values and master copy where the group has them."""
        if self.division is None and not self.has_master:
            return
        whole = self.layout.packed(self.parameters, self.formats.parameters, self.device)
        low, high = self.own
        if self.has_master:
            self.master = whole[low:high].to(self.formats.master)
        if self.division is None:
            return
        if self.division.steps_values:
            self.master = whole[low:high].clone() if self.master is None else self.master
            self.unbind()
        elif self.division.is_gathered:
            self.values = whole.chunk(self.division.values.degree)[self.division.values.number].clone()
            self.unbind()
        else:
            self.values = whole
            self.bind(whole)

    def _trained(self) -> list[Trained]:
        """The parameters themselves, or their parts of the shard, and of the master copy."""
        low, high = self.own
        if self.master is not None:
            source = self.master
        elif self.values is not None:
            source = self.values[slice(*self.own_values)]
        else:
            names = self.parameters
            return [Trained(p, FlatPiece(n, 0, p.numel(), 0)) for n, p in names.items() if p.requires_grad]
        return [
            Trained(self._shaped(source[s.place : s.place + s.length], s.name), s)
            for s in self.layout.segments(low, high)
            if self.parameters[s.name].requires_grad
        ]

    def _shaped(self, flat: Tensor, name: str) -> Tensor:
        """A whole parameter in its shape, which some optimizers ask for."""
        shape = self.layout.shapes[name]
        return flat.view(shape) if len(flat) == prod(shape) else flat

    def bind(self, whole: Tensor) -> None:
        """Let the parameters be views of a buffer; behind those that train are the frozen ones that are gathered, too."""
        for name, view in self.layout.views(whole).items():
            self.parameters[name].data = view
        if self.frozen is not None:
            self.frozen.bind(whole[self.layout.num_padded :])

    def unbind(self) -> None:
        """Let the parameters have a shape, and no memory."""
        for parameter in self._bound_parameters():
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)

    def _bound_parameters(self) -> list[nn.Parameter]:
        return [*self.parameters.values(), *(self.frozen.parameters.values() if self.frozen else ())]

    def gathered_shards(self) -> list[Tensor]:
        """What this rank gives of all that a compute reads, one behind the other in its buffer."""
        kept = self.values if self.values is not None else self.stepped_values()
        return [kept, *([] if self.frozen is None else [self.frozen.values])]

    def stepped_values(self) -> Tensor:
        """The values that are stepped here, in the format of the parameters."""
        if self.master is not None and self.values is None:
            return self.master.to(self.formats.parameters)
        assert self.values is not None, "only what is divided is gathered"
        return self.values[slice(*self.own_values)].clone()

    def publish(self) -> None:
        """After a step: the values that the next computes, or the next gather, read."""
        if self.master is None or (self.division is not None and self.division.steps_values):
            return
        if self.values is not None:
            self.values[slice(*self.own_values)].copy_(self.master)
            return
        for name, view in self.layout.views(self.master).items():
            self.parameters[name].data.copy_(view)

    def loaded(self, gathered: Callable[[RankTeam, Tensor], Tensor]) -> None:
        """What is trained has been written from outside: the values that others step come from them."""
        self.publish()
        if self.values is not None and self.division is not None:
            self.values.copy_(gathered(self.division.beside_values, self.stepped_values()))

    # gradients -------------------------------------------------------------------------------------------------------

    @property
    def _is_flat(self) -> bool:
        is_kept = self.contributions is not None or self.has_master or self.is_widened
        return self.is_reduced or self.division is not None or is_kept

    def begin(self) -> None:
        """A contribution is about to come."""
        if not self.parameters:  # all of them are frozen
            return
        self.is_live = True
        if not self._is_flat or self.flat is not None:
            return
        self.flat = torch.zeros(self.layout.num_padded, dtype=self.formats.parameters, device=self.device)
        for name, view in self.layout.views(self.flat).items():
            if self.parameters[name].requires_grad:
                self.parameters[name].grad = view

    def contributed(self, which: Contribution) -> None:
        """A compute is the last that adds to the gradients of a microbatch: what it is of is handed to its SCATTER_GRAD, or
        summed in the gradients' own format. Where gradients are added in canonical order, keep them apart."""
        if self.flat is None:
            return
        if self.contributions is not None:
            self.contributions.add(which, self.flat.to(self.formats.gradients))
            self._drop_flat()
        elif self.division is not None and self.division.scatters_each:
            self.unscattered[which.microbatch] = self.flat.to(self.formats.gradients)
            self._drop_flat()
        elif self.is_widened:
            self._widen(self.flat)

    def scattered(self, own: Tensor) -> None:
        """A scatter has given this rank's shard of a microbatch's gradient."""
        self.sum = own if self.sum is None else self.sum.add_(own)

    def _widen(self, flat: Tensor) -> None:
        """Add to a sum in the wider format, part by part: adding two formats needs a copy of one. The buffer itself is
        there for the compute only."""
        if self.sum is None:
            self.sum = flat.to(self.formats.gradients)
        else:
            for own, part in zip(self.sum.chunk(NUM_PARTS), flat.chunk(NUM_PARTS), strict=True):
                own.add_(part)
        self._drop_flat()

    def _drop_flat(self) -> None:
        self.flat = None
        for parameter in self.parameters.values():
            parameter.grad = None

    def to_reduce(self) -> Tensor:
        """The gradient that a reduction moves, whole or a shard."""
        kept = self.final()
        assert kept is not None, "a reduction comes behind the last contribution"
        return kept

    def own_part(self, whole: Tensor) -> Tensor:
        """What is stepped here of what a reduction got, once it is whole along all axes; in memory of its own."""
        division = self.division
        assert division is not None, "who shares nothing steps all of it"
        if division.scatters_each:
            return whole.chunk(division.reduced.degree)[division.reduced.number].clone()
        return whole[slice(*self.own)].clone()

    def add_in_order(self, orders: Tensor, values: Tensor) -> None:
        """Take the sum of contributions, in their order."""
        whole = summed(orders, values)
        low, high = self.own
        self.sum = whole if self.division is None else whole[low:high].clone()

    def reduced(self, own: Tensor) -> None:
        """A reduction has given this rank's shard of the sum."""
        self._drop_flat()
        self.sum = own

    def final(self) -> Tensor | None:
        """What `own` elements' gradients are, flat; None where they are the parameters' own."""
        return self.flat if self.sum is None else self.sum

    def settle(self) -> None:
        """Nothing more is added here: contributions that nobody else has are added in their order."""
        if self.contributions is not None and self.sum is None:
            self.add_in_order(*self.contributions.stacked())

    def partial_gradient(self, is_partial: Callable[[str], bool]) -> Tensor | None:
        """What there is here of the gradients of the parameters that `is_partial`, which stand in front; None: nothing."""
        low, high = self.own
        end = sum(prod(shape) for name, shape in self.layout.shapes.items() if is_partial(name))
        if low >= end:
            return None
        flat = self.final()
        assert flat is not None, "groups with partial gradients have them in one buffer"
        return flat[: min(high, end) - low]

    def finish(self, visited: float) -> None:
        """Once in an iteration, when nothing more is added: into the mean over what visited the group, where that is not the
        whole iteration; hand all to what is stepped."""
        if self.is_finished or not self.parameters:
            return
        self.is_finished = True
        self.settle()
        flat = self.final()
        if 0.0 < visited < 1.0:
            torch._foreach_div_(self.gradients() if flat is None else [flat], visited)
        self._give_gradients()

    def gradients(self) -> list[Tensor]:
        """Of the trained tensors, as the optimizer is to see them."""
        flat = self.final()
        if flat is None:
            return [one.tensor.grad for one in self.trained if one.tensor.grad is not None]
        if self.master is None and self.values is None:
            views = self.layout.views(flat)
            return [views[one.segment.name].to(one.tensor.dtype) for one in self.trained]
        return [flat[s.place : s.place + s.length].view(one.shape).to(one.dtype) for one, s in self.trained]

    def _give_gradients(self) -> None:
        if self.final() is None:
            return
        for one, gradient in zip(self.trained, self.gradients(), strict=True):
            one.tensor.grad = gradient

    def end(self) -> None:
        """The step has used them."""
        self.sum, self.is_live, self.is_finished = None, False, False
        self._drop_flat()
        for one in self.trained:
            one.tensor.grad = None


def _decays(name: str, shape: Sequence[int]) -> bool:
    """Is a parameter a matrix? Biases of all experts are one tensor of two dimensions."""
    return len(shape) >= LEAST_DECAYED_DIMS and not name.endswith(".bias")
