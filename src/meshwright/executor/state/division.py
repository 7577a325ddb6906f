"""Division: the teams among which a copy of a group's state, gradients and values is divided, and where a rank's parts lie.

The teams nest: those who share values are among those who share gradients, and these among those who share state. The flat
buffer is cut for values first and each part of it for the others, so that what a rank steps is a part of the values it keeps,
and a step is followed by a gather among those that keep the same part.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from meshwright.executor.team.rank_team import ALONE, RankTeam


@dataclass(frozen=True, eq=False)
class Division:
    """A rank's teams: who shares the state; its values; its gradients; and, beyond these two, the rest of its state.

    ``beside_values``: those who keep the same part of the values, and step another part of it. ``beside_gradients``: those
    who keep the same part of the gradients.
    """

    state: RankTeam
    values: RankTeam = ALONE
    gradients: RankTeam = ALONE
    beside_values: RankTeam = ALONE
    beside_gradients: RankTeam = ALONE

    @property
    def scatters_each(self) -> bool:
        """Are gradients scattered behind every microbatch (ZeRO-2, 3)?"""
        return self.gradients.degree > 1

    @property
    def is_gathered(self) -> bool:
        """Are values there for the computes only that they are gathered for (ZeRO-3)?"""
        return self.values.degree > 1

    @property
    def steps_values(self) -> bool:
        """Is what is kept of the values what is stepped?"""
        return self.is_gathered and self.values.degree == self.state.degree

    @property
    def reduced(self) -> RankTeam:
        """Who shares the state of what a reduction gets: of shards, those who have the same one."""
        return self.beside_gradients if self.scatters_each else self.state

    @property
    def place(self) -> int:
        """Which of the equal parts of the buffer is stepped here."""
        return self.values.number * self.beside_values.degree + self.beside_values.number

    def for_reduction(self, kept: Tensor) -> Tensor:
        """What a reduction gets, with the parts of those who share its state in the order of their numbers."""
        return kept if self.scatters_each else self._arranged(kept, self.state.degree)

    def for_gradients(self, whole: Tensor) -> Tensor:
        """The buffer with the parts of the gradients' members in the order of their numbers."""
        return self._arranged(whole, self.gradients.degree)

    def _arranged(self, whole: Tensor, num_members: int) -> Tensor:
        """Members are numbered from the inside out, values are cut first: their number is the part's last digit."""
        values, outer = self.values.degree, num_members // self.values.degree
        rest = self.state.degree // num_members
        if outer == 1 or values == rest == 1:
            return whole
        parts = whole.view(values, rest, outer, -1)
        return parts.permute(2, 0, 1, 3).reshape(-1)
