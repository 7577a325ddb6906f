"""Caches by hand and against every possible one; a predictor that learns; batches of tokens by path."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog import filler
from meshwright.serving.weight.expert_place import Expert, ExpertPlace, Swap
from meshwright.serving.weight.weight_place import WeightPlace
from meshwright.specs.error import SpecError
from meshwright.systems.moe.expert_flow.card import markov_routing
from meshwright.systems.moe.expert_flow.mechanism import (
    CachedExperts,
    ExpertOrder,
    Foretold,
    Learned,
    LeastFrequent,
    LeastRecent,
    Offloaded,
    Request,
    SlotCache,
    by_path,
    distinct,
    foretold,
    mean_active,
    requests_of,
    run,
)

EXPERTS = 3


def asked(*requests: tuple[int, tuple[int, ...]]) -> list[Request]:
    return [(layer, np.array([experts])) for layer, experts in requests]


def hits(requests: list[Request], num_slots: int, order: ExpertOrder, most_ahead: int = 0) -> int:
    return run(SlotCache(num_slots, order, most_ahead), requests).hits


def truth(requests: list[Request]) -> Foretold:
    return foretold(requests, EXPERTS, 1.0, 0)


def most_hits(requests: list[Request], num_slots: int, most_ahead: int) -> int:
    """Of every way to choose who goes and who comes ahead, by trying them all: what is reached with each set that is held."""
    all_experts = sorted({(layer, number) for layer, experts in requests for number in distinct(experts)})
    best: dict[frozenset[Expert], int] = {frozenset(): 0}

    def keep(found: dict[frozenset[Expert], int], held: frozenset[Expert], num: int) -> None:
        found[held] = max(found.get(held, -1), num)

    for layer, experts in requests:
        for number in distinct(experts):
            after: dict[frozenset[Expert], int] = {}
            own = (layer, number)
            for held, num in best.items():
                if own in held:
                    keep(after, held, num + 1)
                elif len(held) < num_slots:
                    keep(after, held | {own}, num)
                else:
                    for goes in held:
                        keep(after, held - {goes} | {own}, num)
            best = after
        after = {}
        for held, num in best.items():
            rest = [each for each in all_experts if each not in held]
            for count in range(most_ahead + 1):
                for comes in combinations(rest, count):
                    over = max(0, len(held) + count - num_slots)
                    if over <= len(held) and count <= num_slots:
                        for goes in combinations(sorted(held), over):
                            keep(after, held - set(goes) | set(comes), num)
        best = after
    return max(best.values())


REQUESTS = st.lists(
    st.tuples(st.integers(0, 1), st.sets(st.integers(0, EXPERTS - 1), min_size=1).map(tuple)), min_size=1, max_size=9
).map(lambda found: asked(*found))  # fmt: skip


def test_a_cache_of_two_places_by_hand() -> None:
    """a b c a: the least recent one goes, so a is missed; who knows the future keeps it."""
    requests = asked((0, (0,)), (0, (1,)), (0, (2,)), (0, (0,)))
    cache = SlotCache(2, LeastRecent())
    assert run(cache, requests).hits == 0 and cache.held == {(0, 2), (0, 0)}
    assert hits(requests, 2, truth(requests)) == 1
    often = asked((0, (0,)), (0, (0,)), (0, (1,)), (0, (2,)), (0, (0,)))
    assert (hits(often, 2, LeastRecent()), hits(often, 2, LeastFrequent())) == (1, 2)


def test_who_is_expected_comes_in_the_place_of_who_is_not() -> None:
    requests = asked((0, (0,)), (1, (1,)), (0, (2,)))
    cache = SlotCache(1, truth(requests), 1)
    cache.begin(*requests[0])
    assert cache.use((0, 0)) == Swap((0, 0)) and cache.ahead() == [Swap((1, 1), (0, 0))]
    cache.begin(*requests[1])
    assert cache.use((1, 1)) is None and cache.hit_share == 0.5


@given(REQUESTS, st.integers(1, 3), st.integers(0, 2))
def test_an_oracle_is_the_best_there_is(requests: list[Request], num_slots: int, most_ahead: int) -> None:
    """Belady's rule, with and without experts that come ahead, reaches what trying everything reaches."""
    assert hits(requests, num_slots, truth(requests), most_ahead) == most_hits(
        requests, num_slots, most_ahead
    )


@given(REQUESTS, st.integers(1, 4), st.integers(0, 2), st.floats(0, 1), st.integers(0, 99))
def test_nobody_hits_more_often_than_belady_with_prefetch(
    requests: list[Request], num_slots: int, most_ahead: int, accuracy: float, seed: int
) -> None:
    most = hits(requests, num_slots, truth(requests), most_ahead)
    for order in (LeastRecent(), LeastFrequent(), Learned(), foretold(requests, EXPERTS, accuracy, seed)):
        assert hits(requests, num_slots, order, most_ahead) <= most
        assert hits(requests, num_slots, truth(requests)) <= most


@given(REQUESTS, st.integers(1, 4), st.integers(0, 2), st.integers(0, 99))
def test_a_cache_is_never_fuller_than_its_places(
    requests: list[Request], num_slots: int, most_ahead: int, seed: int
) -> None:
    cache, held = SlotCache(num_slots, foretold(requests, EXPERTS, 0.5, seed), most_ahead), set[Expert]()
    for layer, experts in requests:
        cache.begin(layer, experts)
        swaps = [cache.use((layer, number)) for number in distinct(experts)]
        for swap in [*swaps, *cache.ahead()]:
            if swap is not None:
                assert swap.comes not in held and (swap.goes is None or swap.goes in held)
                held = held - {swap.goes} | {swap.comes}
        assert held == cache.held and len(held) <= num_slots


@pytest.mark.parametrize("num_slots", [16, 32])
def test_hits_rise_with_the_accuracy_of_a_predictor(num_slots: int) -> None:
    """From that of nobody's guess to that of the oracle, in eight steps; mean of two routings."""
    traces = [requests_of(markov_routing(120, 6, 16, 2, 0.3, seed), 4) for seed in range(2)]
    shares = [
        np.mean(
            [run(SlotCache(num_slots, foretold(each, 16, accuracy, 1), 4), each).hit_share for each in traces]
        )
        for accuracy in np.linspace(0, 1, 9)
    ]
    assert all(np.diff(shares) > 0) and shares[-1] - shares[0] > 0.15


def test_counts_of_transitions_foretell_a_chain() -> None:
    """Expert e of a layer is followed by e + 1 of the next: seen once, expected from then on, two layers far."""
    order = Learned()
    for layer, expert in ((0, 0), (2, 1), (4, 2), (0, 0)):
        order.begin(layer, np.array([[expert]]))
    assert list(order.coming()) == [(2, 1), (4, 2)]
    assert order.wanted((2, 1)) < order.wanted((4, 2)) < order.wanted((4, 0))
    order.begin(2, np.array([[3]]))
    assert list(order.coming()) == [], "nobody went on from there"


def test_learned_transitions_hit_more_often_than_what_was_used_last() -> None:
    requests = requests_of(markov_routing(200, 6, 16, 2, 0.1, 3), 1)
    assert hits(requests, 24, Learned(), 2) > hits(requests, 24, LeastRecent())


def test_tokens_of_one_path_are_brought_together() -> None:
    """Two kinds of tokens that alternate: a batch of each in place of two of both."""
    routing_TLK = np.array([[[0], [0]], [[1], [1]]] * 2)
    order = by_path(routing_TLK, 2)
    assert order.tolist() == [0, 2, 1, 3]
    assert (mean_active(routing_TLK, 2), mean_active(routing_TLK[order], 2)) == (4.0, 2.0)


def test_batches_by_path_have_a_tenth_fewer_experts_and_more() -> None:
    """Of routing that is drawn from few likely transitions; by arrival a batch has whichever come."""
    routing_TLK = markov_routing(128, 4, 16, 1, 0.1, 0)
    order = by_path(routing_TLK, 8)
    assert mean_active(routing_TLK[order], 8) < 0.9 * mean_active(routing_TLK, 8)


@given(st.integers(0, 999), st.integers(1, 5))
def test_batches_by_path_lose_nobody_and_never_have_more_experts(seed: int, batch: int) -> None:
    routing_TLK = np.random.default_rng(seed).integers(0, 6, (11, 2, 2))
    order = by_path(routing_TLK, batch)
    assert sorted(order.tolist()) == list(range(11))
    assert (routing_TLK[order][order.argsort()] == routing_TLK).all()
    assert mean_active(routing_TLK[order], batch) <= mean_active(routing_TLK, batch)


def test_what_fills_the_slot() -> None:
    made = filler("weights", "expert_flow(slots=3, order=frequent, ahead=0)")
    assert made == CachedExperts(3, "frequent", 0)
    assert isinstance(made, ExpertPlace) and isinstance(made, WeightPlace) and made.source is None
    with pytest.raises(SpecError, match=r"order='random'.*recent"):
        CachedExperts(order="random")


def test_a_step_waits_for_what_it_misses() -> None:
    link = Offloaded(expert_bytes=1e6, bytes_per_s=1e9, layer_s=0.0025)
    requests = asked((0, (0, 1)), (0, (0, 2)))
    cache = run(SlotCache(2, LeastRecent()), requests)
    assert link.most_ahead == 2 and cache.misses == 3
    assert link.seconds(cache, 2) == pytest.approx(2 * 0.0025 + 3 * 0.001)
