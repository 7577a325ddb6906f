"""InnerTeam: the ranks that exchange inside a compute (tensor parallelism, gradients of every microbatch), and how.

These exchanges are priced within the compute's work (`ir.table.Inner`), and have process groups of their own, apart from
those of instructions: a compute may wait here while a stream is under way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import Tensor

from meshwright.executor.team.collective import combine, gathering, scattered_sum
from meshwright.executor.team.slowed_link import INNER, SlowedLinks
from meshwright.executor.team.transport import Transport
from meshwright.ir.program import Axis, Program

Ranks = tuple[int, ...]


def ranks_along(axes: Sequence[Axis], names: Sequence[str]) -> list[Ranks]:
    """The groups of ranks that differ in the named axes only, in order of their first rank; ranks are row-major."""
    places = list(itertools.product(*(range(axis.size) for axis in axes)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        key = tuple(at for at, axis in zip(place, axes, strict=True) if axis.name not in names)
        groups.setdefault(key, []).append(rank)
    return [tuple(group) for group in groups.values()]


def inner_teams(program: Program, names: Sequence[str], label: str) -> list[tuple[Ranks, str]]:
    """The process groups of exchanges inside computes along these axes; none where they have one rank."""
    return [(ranks, label) for ranks in ranks_along(program.axes, names) if len(ranks) > 1]


class InnerTeam:
    """This rank's team of some axes: sums, gathers and scatters that the caller waits for.

    ``transport`` is None where the rank is alone. ``number`` is the rank's place among ``ranks``.
    """

    def __init__(self, ranks: Ranks, rank: int, transport: Transport | None, links: SlowedLinks) -> None:
        self.ranks, self.number, self._transport, self._links = ranks, ranks.index(rank), transport, links

    @property
    def degree(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the team, in place."""
        if self._transport is not None:
            self._links.pass_ring(self.ranks, tensor.nbytes, passes=2, label=INNER)
            combine(tensor, self._transport)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """The element-wise maximum over the team, in place."""
        if self._transport is not None:
            self._links.pass_ring(self.ranks, tensor.nbytes, passes=2, label=INNER)
            combine(tensor, self._transport, is_maximum=True)
        return tensor

    def gathered(self, part: Tensor, dim: int = 0) -> Tensor:
        """The members' equal parts one behind the other along `dim`."""
        return self.gathering(part, dim)()

    def gathering(self, part: Tensor, dim: int = 0) -> Callable[[], Tensor]:
        """Start what `gathered` does; the caller may compute before it asks for the result."""
        if self._transport is None:
            return lambda: part
        self._links.pass_ring(self.ranks, self.degree * part.nbytes, passes=1, label=INNER)
        return gathering(part, self._transport, dim)

    def scattered_sum(self, whole: Tensor, dim: int = 0) -> Tensor:
        """The rank's own equal part along `dim` of the sum over the team."""
        if self._transport is None:
            return whole
        self._links.pass_ring(self.ranks, whole.nbytes, passes=1, label=INNER)
        return scattered_sum(whole, self._transport, dim)

    def own_part(self, whole: Tensor, dim: int) -> Tensor:
        """The rank's own equal part along `dim`: a view."""
        return whole.chunk(self.degree, dim)[self.number] if self.degree > 1 else whole


def alone(rank: int) -> InnerTeam:
    """A team of one."""
    return InnerTeam((rank,), rank, None, SlowedLinks())
