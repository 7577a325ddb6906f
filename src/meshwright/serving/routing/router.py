"""Router: which replica gets a request. It knows what it gave to each and what has ended, and nothing from inside of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from meshwright.serving.request.request import Request
from meshwright.serving.routing.known_prefixes import KnownPrefixes
from meshwright.specs.error import UnknownNameError

KNOWN_SHARE = 0.3  # of a prompt's blocks that a replica has to know to be preferred
MOST_MORE = 8  # requests that a preferred replica may have under way beyond the least loaded one


@dataclass(slots=True)
class RoutedReplica:
    """What a router knows of a replica.

    Args:
        number: which one it is.
        prefixes: of the prompts that it was given.
        num_open: requests that it was given and that have not ended.
        last_turn: how many requests had been given to anybody, with that one, when it got its last; 0: it got none.
    """

    number: int
    prefixes: KnownPrefixes
    num_open: int = 0
    last_turn: int = 0


Choice = Callable[[Request, Sequence[RoutedReplica]], RoutedReplica]


def round_robin(request: Request, replicas: Sequence[RoutedReplica]) -> RoutedReplica:
    """The one whose last turn is longest ago."""
    return min(replicas, key=lambda each: each.last_turn)


def least_loaded(request: Request, replicas: Sequence[RoutedReplica]) -> RoutedReplica:
    """The one with the fewest requests under way."""
    return min(replicas, key=lambda each: each.num_open)


def prefix_aware(request: Request, replicas: Sequence[RoutedReplica]) -> RoutedReplica:
    """The one that knows most of the prompt, if that is a good part of it and the replica has not much more to do than
    others; else the least loaded one. The idea is that of SGLang's cache-aware router (2024)."""
    least = least_loaded(request, replicas)
    if not request.block_keys:
        return least
    known = {each.number: each.prefixes.num_known(request.block_keys) for each in replicas}
    best = max(replicas, key=lambda each: known[each.number])
    is_near = best.num_open <= least.num_open + MOST_MORE
    return best if is_near and known[best.number] >= KNOWN_SHARE * len(request.block_keys) else least


ROUTERS: Mapping[str, Choice] = {
    "least_loaded": least_loaded,
    "round_robin": round_robin,
    "prefix_aware": prefix_aware,
}
USUAL_ROUTER = "least_loaded"


class Router:
    """Args:
    name: one of `ROUTERS`. Raises UnknownNameError.
    num_replicas: from 1.
    num_blocks: that a replica has for keys and values.
    """

    def __init__(self, name: str, num_replicas: int, num_blocks: int) -> None:
        if name not in ROUTERS:
            raise UnknownNameError("router", name, ROUTERS)
        self._choose, self._num_blocks, self._num_given = ROUTERS[name], num_blocks, 0
        self.replicas = [RoutedReplica(number, KnownPrefixes(num_blocks)) for number in range(num_replicas)]

    def give(self, request: Request, among: Collection[int] | None = None) -> int:
        """The number of the replica that gets a request: of these, at least one, or of all."""
        chosen = self._choose(
            request, [each for each in self.replicas if among is None or each.number in among]
        )
        self._num_given += 1
        chosen.last_turn = self._num_given
        chosen.num_open += 1
        chosen.prefixes.know(request.block_keys)
        return chosen.number

    def ended(self, number: int) -> None:
        """A request that was given to it has ended there, however."""
        self.replicas[number].num_open -= 1

    def forget(self, number: int) -> None:
        """It has begun anew, and knows nothing."""
        self.replicas[number].prefixes = KnownPrefixes(self._num_blocks)
