"""What may fill the slot `weights` of models with experts: a few places for experts, and who has them as steps are routed.

An engine asks a cache in this order: of every layer `begin` with the routing, `use` for every expert that has tokens, by
rising numbers, `ahead` behind the last of them. Decisions depend on nothing else, so they repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Expert = tuple[int, int]  # its layer, its number there


class Swap(NamedTuple):
    """An expert that comes into a place, and who leaves it; None: the place was free."""

    comes: Expert
    goes: Expert | None = None


class ExpertCache(Protocol):
    """Decides which experts are on a device; it holds no weights. ``num_slots``: experts that are there at once."""

    @property
    def num_slots(self) -> int:
        """See above."""
        ...

    def begin(self, layer: int, experts_TK: NDArray[np.int64]) -> None:
        """The tokens [T, K] of a step were sent to these experts of a layer."""
        ...

    def use(self, expert: Expert) -> Swap | None:
        """An expert is computed with. None: it is there; else it comes now, and the step waits for it."""
        ...

    def ahead(self) -> Sequence[Swap]:
        """Experts that come while others compute, because they are expected."""
        ...


@runtime_checkable
class ExpertPlace(Protocol):
    """The protocol: a `WeightPlace` that fetches no blocks, but experts."""

    def expert_cache(self) -> ExpertCache:
        """One that is empty."""
        ...


@dataclass
class ExpertCounts:
    """What an engine has seen. Experts that were there when they were used, that were not, that came ahead, and those of
    the first kind that had not come yet; bytes of experts that are here (or are coming), and the most of that so far."""

    hits: int = 0
    misses: int = 0
    came_ahead: int = 0
    waits: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0

    def add_bytes(self, num_bytes: int) -> None:
        """That come (or go)."""
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
