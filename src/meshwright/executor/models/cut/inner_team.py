"""What the layers of a cut module exchange with the other devices of their team, in the middle of a compute.

A module of the user's is called as a whole: no row of a program can stand between two of its layers (docs/decisions.md). All
devices of a team run the same list, and torch runs a backward in the reverse order of its forward, so they meet in one order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from meshwright.executor.team.collective import combine, gathering
from meshwright.executor.team.transport import Transport


@dataclass(eq=False)
class InnerTeam:
    """Device `number` of `degree`. `sums`: all-reduces in forwards by the path of the layer; whoever counts clears it."""

    number: int
    degree: int
    transport: Transport
    sums: Counter[str] = field(default_factory=Counter)

    def copied(self, x: Tensor) -> Tensor:
        """What every device has, on its way into parts: the gradients of these are summed."""
        return cast(Tensor, _Copy.apply(x, self))  # type: ignore[no-untyped-call]

    def summed(self, x: Tensor, path: str) -> Tensor:
        """The sum of what the devices have; counted."""
        self.sums[path] += 1
        return cast(Tensor, _Sum.apply(x, self))  # type: ignore[no-untyped-call]

    def gathered(self, x: Tensor, dim: int = -1) -> Tensor:
        """What the devices have, side by side."""
        return cast(Tensor, _Gather.apply(x, self, dim))  # type: ignore[no-untyped-call]

    def own_part(self, x: Tensor, dim: int = -1) -> Tensor:
        """This device's equal part of what all have."""
        return cast(Tensor, _Part.apply(x, self, dim))  # type: ignore[no-untyped-call]

    def total(self, x: Tensor) -> Tensor:
        """The sum, in memory of its own."""
        return combine(x.detach().clone(memory_format=torch.contiguous_format), self.transport)

    def part(self, x: Tensor, dim: int) -> Tensor:
        """A copy of this device's equal part."""
        return x.detach().chunk(self.degree, dim)[self.number].clone(memory_format=torch.contiguous_format)

    def whole(self, x: Tensor, dim: int) -> Tensor:
        """All parts side by side."""
        return gathering(x.detach(), self.transport, dim % x.dim())()


class _Copy(torch.autograd.Function):
    """The same forwards; backwards the sum over the devices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: InnerTeam) -> Tensor:
        ctx.team = team
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.team.total(gradient), None


class _Sum(torch.autograd.Function):
    """The sum over the devices; backwards the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: InnerTeam) -> Tensor:
        return team.total(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(torch.autograd.Function):
    """Parts side by side; backwards the own part of a gradient that all have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: InnerTeam, dim: int) -> Tensor:
        ctx.team, ctx.dim = team, dim
        return team.whole(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.team.part(gradient, ctx.dim), None, None


class _Part(torch.autograd.Function):
    """The own part; backwards the parts of the gradient side by side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: InnerTeam, dim: int) -> Tensor:
        ctx.team, ctx.dim = team, dim
        return team.part(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.team.whole(gradient, ctx.dim), None, None
