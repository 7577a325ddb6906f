"""Caches of experts: least recently and least often used, foretold by a predictor, and the best there is; batches by path.

Shapes: T tokens, L layers with experts, K experts a token, X experts of a layer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.weight.expert_place import Expert, Swap
from meshwright.specs.error import SpecError
from meshwright.specs.option import option

Routing = NDArray[np.int64]
Request = tuple[int, Routing]  # a layer, and the experts [T, K] of the tokens of a step
Time = tuple[float, ...]  # of two, the later one is greater
NEVER: Time = (math.inf,)


class ExpertOrder(Protocol):
    """What is expected of experts. ``wanted`` of two: the greater one is wanted later."""

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """As of `ExpertCache`."""

    def used(self, expert: Expert) -> None:
        """It was computed with."""

    def wanted(self, expert: Expert) -> Time:
        """When, as far as is known."""

    def coming(self) -> Iterator[Expert]:
        """Those that are expected, the first one first."""


class LeastRecent:
    """Who was used last is wanted first (LRU)."""

    def __init__(self) -> None:
        self._now, self._last = 0, dict[Expert, int]()

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """Nothing."""

    def used(self, expert: Expert) -> None:
        """The youngest."""
        self._now += 1
        self._last[expert] = self._now

    def wanted(self, expert: Expert) -> Time:
        """The longer ago, the later."""
        return (-self._last.get(expert, 0),)

    def coming(self) -> Iterator[Expert]:
        """It expects nobody."""
        return iter(())


class LeastFrequent(LeastRecent):
    """Who was used most often is wanted first (LFU); of equals who was used last."""

    def __init__(self) -> None:
        super().__init__()
        self._times = Counter[Expert]()

    def used(self, expert: Expert) -> None:
        """Once more."""
        super().used(expert)
        self._times[expert] += 1

    def wanted(self, expert: Expert) -> Time:
        """The rarer, the later."""
        return (-self._times[expert], *super().wanted(expert))


class Foretold:
    """All requests are told before they come: truly, or by a predictor that is sometimes wrong. What a router has said of
    the request that is under way stands in place of what was told of it."""

    def __init__(self, requests: Iterable[tuple[int, Iterable[int]]]) -> None:
        self._told = [[(layer, number) for number in sorted(set(experts))] for layer, experts in requests]
        self._when: dict[Expert, list[int]] = {}
        for at, experts in enumerate(self._told):
            for expert in experts:
                self._when.setdefault(expert, []).append(at)
        self._now, self._under_way = -1, set[Expert]()

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """The next request."""
        self._now += 1
        self._under_way = {(layer, number) for number in distinct(experts_TK)}

    def used(self, expert: Expert) -> None:
        """Not in this request again."""
        self._under_way.discard(expert)

    def wanted(self, expert: Expert) -> Time:
        """The request, and within it experts by rising numbers."""
        if expert in self._under_way:
            return (self._now, expert[1])
        told = self._when.get(expert, [])
        at = bisect_right(told, self._now)
        return (told[at], expert[1]) if at < len(told) else NEVER

    def coming(self) -> Iterator[Expert]:
        """Of all requests behind this one."""
        for at in range(self._now + 1, len(self._told)):
            yield from self._told[at]


class Learned(LeastRecent):
    """A predictor that learns while it serves: which experts of the next layer the tokens of an expert went to, as counts.
    Counts of one layer after the other are multiplied, from where tokens are now to the last layer; behind that it expects
    nobody. Of a layer it names as many experts as this one's tokens have.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[
            int, dict[int, Counter[int]]
        ] = {}  # of a layer: expert -> experts of the layer behind it
        self._behind: dict[int, int] = {}  # of a layer the next one with experts
        self._at: tuple[int, Routing] | None = None
        self._under_way, self._expected = set[Expert](), dict[Expert, int]()

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """Learn how tokens came here, and say where they go."""
        if self._at is not None and self._at[0] < layer and len(self._at[1]) == len(experts_TK):
            self._learn(*self._at, layer, experts_TK)
        self._at = layer, experts_TK
        self._under_way = {(layer, number) for number in distinct(experts_TK)}
        self._expected = {}
        shares: Mapping[int, float] = Counter(experts_TK.reshape(-1).tolist())
        number = len(shares)
        for distance in range(1, 1 + len(self._behind)):
            found: dict[int, float] = {}
            for expert, share in shares.items():
                seen = self._counts.get(layer, {}).get(expert, Counter[int]())
                total = sum(seen.values())
                for follower, count in seen.items():
                    found[follower] = found.get(follower, 0.0) + share * count / total
            if not found:
                return
            layer, shares = self._behind[layer], found
            likely = sorted(found, key=lambda each: (-found[each], each))[:number]
            self._expected.update({(layer, each): distance for each in sorted(likely)})

    def _learn(self, layer: int, before_TK: Routing, behind: int, experts_TK: Routing) -> None:
        self._behind[layer] = behind
        counts = self._counts.setdefault(layer, {})
        for before, now in zip(before_TK.tolist(), experts_TK.tolist(), strict=True):
            for expert in before:
                counts.setdefault(expert, Counter()).update(now)

    def used(self, expert: Expert) -> None:
        """Not in this request again."""
        super().used(expert)
        self._under_way.discard(expert)

    def wanted(self, expert: Expert) -> Time:
        """What is expected first, then what was used last."""
        if expert in self._under_way:
            return (0, expert[1])
        at = self._expected.get(expert)
        return (at, expert[1]) if at else (math.inf, *super().wanted(expert))

    def coming(self) -> Iterator[Expert]:
        """Of the layers behind this one."""
        return iter(self._expected)


class SlotCache:
    """An `ExpertCache`. Who is wanted last goes. Behind every request as many as `most_ahead` may come that are expected,
    the first one first, each in the place of somebody who is wanted later than it."""

    def __init__(self, num_slots: int, order: ExpertOrder, most_ahead: int = 0) -> None:
        self.num_slots, self.order, self.most_ahead = num_slots, order, most_ahead
        self.hits = self.misses = self.came_ahead = 0
        self.held = set[Expert]()

    def begin(self, layer: int, experts_TK: Routing) -> None:
        """As of `ExpertCache`."""
        self.order.begin(layer, experts_TK)

    def use(self, expert: Expert) -> Swap | None:
        """As of `ExpertCache`."""
        self.order.used(expert)
        if expert in self.held:
            self.hits += 1
            return None
        self.misses += 1
        return self._swap(expert, self._last())

    def ahead(self) -> list[Swap]:
        """As of `ExpertCache`."""
        found: list[Swap] = []
        seen = set[Expert]()
        for expert in self.order.coming() if self.most_ahead else ():
            seen.add(expert)
            if expert not in self.held:
                last = self._last()
                if last is not None and self.order.wanted(last) <= self.order.wanted(expert):
                    break
                found.append(self._swap(expert, last))
            if len(found) == self.most_ahead or len(seen) == self.num_slots:
                break
        self.came_ahead += len(found)
        return found

    @property
    def hit_share(self) -> float:
        """Of all uses."""
        return self.hits / (self.hits + self.misses)

    def _last(self) -> Expert | None:
        """Who goes, where no place is free."""
        if len(self.held) < self.num_slots:
            return None
        return max(self.held, key=lambda each: (self.order.wanted(each), each))

    def _swap(self, comes: Expert, goes: Expert | None) -> Swap:
        self.held.discard(goes if goes is not None else comes)
        self.held.add(comes)
        return Swap(comes, goes)


LEARNED = "learned"
ORDERS = {"recent": LeastRecent, "frequent": LeastFrequent, LEARNED: Learned}


@dataclass(frozen=True)
class CachedExperts:
    """A few experts of all layers together are on a device; who is wanted comes from the files of the model."""

    slots: int = option(16, "Experts of all layers together that are on a device at once.", least=1)
    order: str = option(
        LEARNED, f"Who stays: {', '.join(ORDERS)}; {LEARNED} predicts from the routing seen so far."
    )
    ahead: int = option(2, "Expected experts that come behind each layer, at most.", least=0)

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise SpecError(f"experts stay by order={self.order!r}", allowed=", ".join(ORDERS))

    window, source = 0, None

    def fetched(self, blocks: Sequence[str]) -> Sequence[str]:
        """No block: experts are within one."""
        return ()

    def expert_cache(self) -> SlotCache:
        """One that is empty."""
        return SlotCache(self.slots, ORDERS[self.order](), self.ahead)


def distinct(experts_TK: Routing) -> list[int]:
    """Experts that have tokens, by rising numbers."""
    return [int(each) for each in np.unique(experts_TK)]


def requests_of(routing_TLK: Routing, batch: int) -> list[Request]:
    """Steps of so many tokens in a row, layer after layer."""
    steps = (routing_TLK[first : first + batch] for first in range(0, len(routing_TLK), batch))
    return [(layer, step[:, layer]) for step in steps for layer in range(step.shape[1])]


def run(cache: SlotCache, requests: Iterable[Request]) -> SlotCache:
    """A cache behind these requests."""
    for layer, experts_TK in requests:
        cache.begin(layer, experts_TK)
        for number in distinct(experts_TK):
            cache.use((layer, number))
        cache.ahead()
    return cache


def foretold(requests: Sequence[Request], num_experts: int, accuracy: float, seed: int) -> Foretold:
    """By a predictor that names each expert of a request with this probability, else any of its layer. 1: an oracle.

    A seed draws the same numbers for every accuracy: who is named at 0.5 is named at 0.6, too.
    """
    draw = np.random.default_rng(seed)
    told = []
    for layer, experts_TK in requests:
        truth = np.array(distinct(experts_TK))
        is_named, others = draw.random(len(truth)) < accuracy, draw.integers(0, num_experts, len(truth))
        told.append((layer, np.where(is_named, truth, others).tolist()))
    return Foretold(told)


def by_path(predicted_TLK: Routing, batch: int) -> NDArray[np.int64]:
    """An order of tokens in which each batch has those whose predicted paths share experts: [T].

    A batch begins with the first token that is left; then whoever adds the fewest experts, of these the first.
    ``order.argsort()`` puts outputs back. The order of arrival stays where it has fewer experts.
    """
    is_used = _used(predicted_TLK)
    left, found = np.arange(len(is_used)), list[int]()
    while len(left):
        chosen, active = [left[0]], is_used[left[0]].copy()
        left = left[1:]
        while len(left) and len(chosen) < batch:
            at = int(np.argmin((is_used[left] & ~active).sum(1)))
            chosen.append(left[at])
            active |= is_used[left[at]]
            left = np.delete(left, at)
        found += map(int, chosen)
    order = np.array(found)
    is_better = mean_active(predicted_TLK[order], batch) < mean_active(predicted_TLK, batch)
    return order if is_better else np.arange(len(order))


def mean_active(routing_TLK: Routing, batch: int) -> float:
    """Experts that a batch has in all layers together, on average."""
    is_used = _used(routing_TLK)
    firsts = range(0, len(is_used), batch)
    return float(np.mean([is_used[first : first + batch].any(0).sum() for first in firsts]))


def _used(routing_TLK: Routing) -> NDArray[np.bool_]:
    """[T, L X]: the path of every token."""
    num_tokens, num_layers, _ = routing_TLK.shape
    found = np.zeros((num_tokens, num_layers, int(routing_TLK.max()) + 1), dtype=bool)
    tokens, layers = np.arange(num_tokens)[:, None, None], np.arange(num_layers)[None, :, None]
    found[tokens, layers, routing_TLK] = True
    return found.reshape(num_tokens, -1)


@dataclass(frozen=True)
class Offloaded:
    """Experts that come over a link. A step waits for those that it misses, and computes beside those that come ahead."""

    expert_bytes: float
    bytes_per_s: float
    layer_s: float  # of a layer without waiting

    @property
    def most_ahead(self) -> int:
        """Experts that come while a layer computes."""
        return int(self.layer_s * self.bytes_per_s / self.expert_bytes)

    def seconds(self, cache: SlotCache, num_requests: int) -> float:
        """Of all steps that a cache has seen."""
        return num_requests * self.layer_s + cache.misses * self.expert_bytes / self.bytes_per_s
