"""Clients of a fleet who wait: each sends its next request, which a router gives to a replica, when its last has ended."""

from __future__ import annotations

from collections.abc import Sequence as Items
from functools import partial

from meshwright.serving.engine.engine import INFINITY
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.loop.arrivals import ClientArrivals
from meshwright.serving.loop.request_log import RequestLog
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.request.request import Request
from meshwright.serving.routing.router import Router


def serve_clients(
    replicas: Items[SimulatedReplica], router: str, clients: ClosedLoop
) -> tuple[RequestLog, ...]:
    """Serve all that they send, on virtual time."""
    arrivals = ClientArrivals(clients)
    if len(replicas) == 1:
        replicas[0].serve(arrivals)
    else:
        _Waited(replicas, Router(router, len(replicas), replicas[0].pool.num_blocks), arrivals).run()
    return tuple(each.log for each in replicas)


class _Waited:
    """Several replicas. The next request comes at the earliest when the first of their steps ends, so no replica may leap
    beyond that: what ends elsewhere may be answered with a request for it."""

    def __init__(self, replicas: Items[SimulatedReplica], router: Router, arrivals: ClientArrivals) -> None:
        self._replicas, self._router, self._arrivals = replicas, router, arrivals
        for number, each in enumerate(replicas):
            each.arrivals.on_end = partial(self._ended, number)

    def run(self) -> None:
        """Until nobody sends and nothing runs."""
        while True:
            next_s = self._arrivals.next_s()
            first = min(self._replicas, key=_ends_s)
            if next_s == INFINITY and not first.engine.is_busy:
                return
            if next_s < _ends_s(first):
                self._route(next_s)
                continue
            result = first.loop.collect()
            self._route(result.end_s)
            self._bound(first)
            first.loop.take_arrivals()
            first.loop.give_out()

    def _route(self, now_s: float) -> None:
        """Give what has come by now to replicas."""
        for request in self._arrivals.take(now_s):
            chosen = self._replicas[self._router.give(request)]
            self._bound(chosen)
            chosen.give(request)

    def _bound(self, replica: SimulatedReplica) -> None:
        """How far it may leap."""
        others = (_ends_s(each) for each in self._replicas if each is not replica)
        replica.arrivals.horizon_s = min((self._arrivals.next_s(), *others))

    def _ended(self, number: int, request: Request, now_s: float) -> None:
        self._router.ended(number)
        self._arrivals.ended(request, now_s)


def _ends_s(replica: SimulatedReplica) -> float:
    return replica.engine.next_end_s() if replica.engine.is_busy else INFINITY
