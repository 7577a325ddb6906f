"""Arrivals: when requests come, other than they were recorded: at a rate, or whenever a client is free."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from meshwright.serving.request.request import Request
from meshwright.specs.error import SpecError
from meshwright.specs.option import option


class ArrivalProcess(Protocol):
    """When so many requests come."""

    def times_s(self, num: int) -> list[float]:
        """The arrivals of `num` requests, rising, the first at 0."""
        ...


@dataclass(frozen=True)
class Gamma:
    """Gaps between requests with a gamma distribution."""

    rate_per_s: float = option(1.0, "Requests a second in the mean.", above=0)
    variation: float = option(1.0, "Standard deviation of a gap over its mean: above 1 in bursts.", above=0)
    seed: int = option(0, "Of the gaps.")

    def times_s(self, num: int) -> list[float]:
        """Gaps of shape 1 / variation^2, whose mean is 1 / rate."""
        shape = self.variation**-2
        draw = random.Random(self.seed)
        gaps = (draw.gammavariate(shape, 1.0 / (shape * self.rate_per_s)) for _ in range(num - 1))
        return list(accumulate(gaps, initial=0.0))


@dataclass(frozen=True)
class Poisson:
    """Requests that know nothing of each other: exponential gaps."""

    rate_per_s: float = option(1.0, "Requests a second in the mean.", above=0)
    seed: int = option(0, "Of the gaps.")

    def times_s(self, num: int) -> list[float]:
        """Gamma of variation 1."""
        return Gamma(self.rate_per_s, 1.0, self.seed).times_s(num)


@dataclass(frozen=True)
class Constant:
    """Equal gaps."""

    rate_per_s: float = option(1.0, "Requests a second.", above=0)

    def times_s(self, num: int) -> list[float]:
        """Multiples of 1 / rate."""
        return [number / self.rate_per_s for number in range(num)]


def arriving(requests: Sequence[Request], process: ArrivalProcess) -> list[Request]:
    """The same requests in the same order, at other times."""
    times_s = process.times_s(len(requests))
    return [replace(each, arrival_s=at) for each, at in zip(requests, times_s, strict=True)]


def at_rate(requests: Sequence[Request], factor: float) -> list[Request]:
    """The same requests `factor` times as often. Raises SpecError."""
    if not 0.0 < factor < float("inf"):
        raise SpecError(f"requests {factor:g} times as often", allowed="a factor above 0")
    return [replace(each, arrival_s=each.arrival_s / factor) for each in requests]


class ClosedLoop:
    """`num_clients` clients, each of which sends its next request `think_s` seconds after its last one has ended; they begin
    evenly over as long, not all at once."""

    def __init__(self, requests: Iterable[Request], num_clients: int, think_s: float = 0.0) -> None:
        if num_clients < 1 or not think_s >= 0.0:
            raise SpecError(
                f"{num_clients} clients that think {think_s:g} s", allowed="1 or more, and 0 s or more"
            )
        self._waiting = deque(requests)
        self._num_clients, self._think_s = num_clients, think_s

    def first(self) -> list[Request]:
        """What each client sends first, by arrival."""
        num = min(self._num_clients, len(self._waiting))
        gap_s = self._think_s / num if num else 0.0
        return [replace(self._waiting.popleft(), arrival_s=gap_s * number) for number in range(num)]

    def after(self, end_s: float) -> Request | None:
        """What a client sends whose request has ended; None: nothing is left."""
        return replace(self._waiting.popleft(), arrival_s=end_s + self._think_s) if self._waiting else None
