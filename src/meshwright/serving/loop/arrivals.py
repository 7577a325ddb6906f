"""Requests of a recorded load, and of clients who wait for their answers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from meshwright.serving.engine.engine import INFINITY
from meshwright.serving.request.arrival import ClosedLoop
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
    """Requests of clients, each of whom sends its next one when its last has ended (and after a while)."""

    def __init__(self, clients: ClosedLoop) -> None:
        self._clients = clients
        self._coming = [
            (request.arrival_s, number, request) for number, request in enumerate(clients.first())
        ]
        self._num_sent = len(self._coming)

    def next_s(self) -> float:
        """When the next one comes, of those whose client is free."""
        return self._coming[0][0] if self._coming else INFINITY

    def take(self, now_s: float) -> Sequence[Request]:
        """Those that have come by now."""
        taken = []
        while self._coming and self._coming[0][0] <= now_s:
            taken.append(heapq.heappop(self._coming)[2])
        return taken

    def ended(self, request: Request, now_s: float) -> None:
        """Its client is free."""
        following = self._clients.after(now_s)
        if following is not None:
            heapq.heappush(self._coming, (following.arrival_s, self._num_sent, following))
            self._num_sent += 1
