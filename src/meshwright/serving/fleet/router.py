"""Routers: which replica gets a request. They see how much each has to do, and which prefixes it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Protocol

from meshwright.serving.request.request import Request

KNOWN_SHARE = 0.3  # of a prompt's blocks that a replica has to know to be preferred
MOST_MORE = 8  # requests that a preferred replica may have under way beyond the least loaded one


class RoutedReplica(Protocol):
    """What a router sees of a replica."""

    @property
    def num_open(self) -> int:
        """Requests that it was given and that have not ended."""
        ...

    def num_known(self, request: Request) -> int:
        """Blocks at the beginning of a request's prompt that it has computed already."""
        ...


Router = Callable[[Request], int]


def round_robin(replicas: Sequence[RoutedReplica]) -> Router:
    """One after the other."""
    turns = cycle(range(len(replicas)))
    return lambda _: next(turns)


def least_loaded(replicas: Sequence[RoutedReplica]) -> Router:
    """The one with the fewest requests under way."""
    return lambda _: _least(replicas)


def prefix_aware(replicas: Sequence[RoutedReplica]) -> Router:
    """The one that knows most of the prompt, if that is a good part of it and the replica has not much more to do than
    others; else the least loaded one. The idea is that of SGLang's cache-aware router (2024)."""

    def choose(request: Request) -> int:
        least = _least(replicas)
        if request.block_keys:
            known = [each.num_known(request) for each in replicas]
            best = max(range(len(replicas)), key=known.__getitem__)
            is_near = replicas[best].num_open <= replicas[least].num_open + MOST_MORE
            if is_near and known[best] >= KNOWN_SHARE * len(request.block_keys):
                return best
        return least

    return choose


def _least(replicas: Sequence[RoutedReplica]) -> int:
    return min(range(len(replicas)), key=lambda number: replicas[number].num_open)


ROUTERS: Mapping[str, Callable[[Sequence[RoutedReplica]], Router]] = {
    "least_loaded": least_loaded,
    "round_robin": round_robin,
    "prefix_aware": prefix_aware,
}
