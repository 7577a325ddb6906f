"""Routers: each policy by hand, what a router forgets, and that it knows no more than a front could."""

from __future__ import annotations

import pytest

from meshwright.serving.request.request import Request
from meshwright.serving.routing.known_prefixes import KnownPrefixes
from meshwright.serving.routing.router import MOST_MORE, Router
from meshwright.specs.error import UnknownNameError


def asked(*keys: str) -> Request:
    """With a prompt of these blocks."""
    return Request("r", max(1, len(keys)), 1, block_keys=keys)


def test_in_turns_goes_on_where_it_was_when_one_is_away() -> None:
    router = Router("round_robin", 3, 8)
    assert [router.give(asked()) for _ in range(4)] == [0, 1, 2, 0]
    assert [router.give(asked(), among=(0, 2)) for _ in range(3)] == [2, 0, 2]
    assert router.give(asked()) == 1


def test_the_least_loaded_is_the_one_with_the_fewest_open() -> None:
    router = Router("least_loaded", 2, 8)
    assert [router.give(asked()) for _ in range(3)] == [0, 1, 0]
    router.ended(0)
    router.ended(0)
    assert [router.give(asked()) for _ in range(3)] == [0, 0, 1]


def test_a_prompt_goes_where_its_beginning_is_known() -> None:
    """From three tenths of it on, as long as that replica has not much more to do."""
    router = Router("prefix_aware", 2, 64)
    assert [router.give(asked("a", "b", "c")), router.give(asked("x", "y", "z"))] == [0, 1]
    router.ended(0)
    assert router.give(asked("x", "y", "new")) == 1, "known there, though 0 has less to do"
    assert router.give(asked("x", "1", "2", "3")) == 0, "a quarter of it is too little"
    assert router.give(asked("other", "b", "c")) == 0, "equal blocks behind another beginning are others"
    for _ in range(MOST_MORE + 1):
        found = router.give(asked("x", "y", "z"))
    assert found == 1 and router.replicas[1].num_open == router.replicas[0].num_open + MOST_MORE + 1
    assert router.give(asked("x", "y", "z")) == 0, "the other has too much to do"


def test_who_begins_anew_knows_nothing() -> None:
    router = Router("prefix_aware", 2, 64)
    router.give(asked())
    assert [router.give(asked("x", "y")), router.give(asked("x", "y"))] == [1, 1]
    router.forget(1)
    assert router.give(asked("x", "y")) == 0
    assert router.give(asked("x", "y"), among=(1,)) == 1


def test_the_prefix_used_longest_ago_is_forgotten_first() -> None:
    known = KnownPrefixes(4)
    for each in ("ab", "cd", "ab", "ef"):
        known.know(tuple(each))
    assert [known.num_known(tuple(each)) for each in ("ab", "cd", "ef")] == [2, 0, 2]
    known.know(tuple("abghij"))
    assert known.num_known(tuple("abghij")) == 4, "as many as there are blocks, from the beginning"


def test_a_router_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="prefix_aware"):
        Router("prefix", 2, 8)
