"""PathPlan: which paths microbatches take in a round, and when they are injected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.systems.pipeline.skip_pipe.arrival_dispatch import Injection


@dataclass(frozen=True)
class PathPlan:
    """Paths of one round, and when microbatches take them.

    Attributes:
        paths: nodes of each path, the first one of stage 0; several of one node are its places, in order.
        spacing_s: between the places of a node.
        num_rounds, round_s: how often all paths are taken, and how long after the round before.
    """

    paths: tuple[tuple[int, ...], ...]
    spacing_s: float
    num_rounds: int = 2
    round_s: float = 2.5

    def injections(self) -> tuple[Injection, ...]:
        """Every path once a round; later rounds wait while the first one's microbatch in their place is under way."""
        places = self.places()
        return tuple(
            Injection(
                path,
                number * self.round_s + places[p] * self.spacing_s,
                p * self.num_rounds if number else -1,
            )
            for p, path in enumerate(self.paths)
            for number in range(self.num_rounds)
        )

    def places(self) -> tuple[int, ...]:
        """Of every path, how many of its node stand before it."""
        homes = [path[0] for path in self.paths]
        return tuple(homes[:p].count(home) for p, home in enumerate(homes))


def repeated(paths: Sequence[tuple[int, ...]], copies: int) -> tuple[tuple[int, ...], ...]:
    """Each path in so many places of its node."""
    return tuple(path for path in paths for _ in range(copies))
