"""RankTeam: ranks that share something, such as matrices or an optimizer's state, and which of them this one is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

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


class RankTeam(NamedTuple):
    """``number`` is this rank's place among ``ranks``. What they exchange is rows of the program."""

    ranks: Ranks = (0,)
    number: int = 0

    @staticmethod
    def along(program: Program, names: Sequence[str], rank: int) -> RankTeam:
        """Those that differ from a rank in the named axes only."""
        ranks = next(each for each in ranks_along(program.axes, names) if rank in each)
        return RankTeam(ranks, ranks.index(rank))

    @property
    def degree(self) -> int:
        """How many they are."""
        return len(self.ranks)

    def own_part(self, whole: Tensor, dim: int) -> Tensor:
        """The rank's own equal part along `dim`: a view."""
        return whole.chunk(self.degree, dim)[self.number] if self.degree > 1 else whole


ALONE = RankTeam()
