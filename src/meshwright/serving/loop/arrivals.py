"""Requests whose arrival is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.serving.engine.engine import INFINITY
from meshwright.serving.request.request import Request


class RecordedArrivals:
    """Requests that come when they say, whatever becomes of the others."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival_s)
        self._next = 0

    def next_s(self) -> float:
        """When the next one comes."""
        return self._requests[self._next].arrival_s if self._next < len(self._requests) else INFINITY

    def take(self, now_s: float) -> Sequence[Request]:
        """Those that have come by now."""
        first, requests = self._next, self._requests
        while self._next < len(requests) and requests[self._next].arrival_s <= now_s:
            self._next += 1
        return requests[first : self._next]

    def ended(self, request: Request, now_s: float) -> None:
        """Nobody waits for it."""


class ClientArrivals:
    """`num_clients` clients, each of which sends the next request as soon as its last one has ended."""

    def __init__(self, requests: Iterable[Request], num_clients: int) -> None:
        self._requests = list(requests)
        self._next, self._num_allowed = 0, num_clients
        self._now_s = 0.0

    def next_s(self) -> float:
        """Now, if a client is free; it never comes by itself otherwise."""
        has_more = self._next < min(self._num_allowed, len(self._requests))
        return self._now_s if has_more else INFINITY

    def take(self, now_s: float) -> Sequence[Request]:
        """One for each client that is free."""
        taken = self._requests[self._next : self._num_allowed]
        self._next += len(taken)
        for request in taken:
            request.arrival_s = now_s
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Its client is free."""
        self._num_allowed += 1
        self._now_s = max(self._now_s, now_s)
