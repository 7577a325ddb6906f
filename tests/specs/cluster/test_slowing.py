"""What is slowed is said in words, survives JSON, and is refused where it cannot be."""

from __future__ import annotations

import json

import pytest

from meshwright.specs.cluster.slowing import BURST_BYTES, LinkLimit, Slowing
from meshwright.specs.error import SpecError


def test_words_give_links_and_processes() -> None:
    slowing = Slowing.parse(links=["0-1=50MB/s", " 2-1 = 8Gb/s "], processes=["1=2.5"])
    assert slowing.links == (LinkLimit(0, 1, 50e6, BURST_BYTES), LinkLimit(2, 1, 1e9, BURST_BYTES))
    assert slowing.factor(1) == 2.5 and slowing.factor(0) == 1.0
    assert Slowing.from_dict(json.loads(json.dumps(slowing.to_dict()))) == slowing


def test_a_link_limits_both_of_its_ends() -> None:
    slowing = Slowing.parse(links=["0-1=50MB/s", "2-1=1GB/s"])
    assert {other: limit.bytes_per_s for other, limit in slowing.links_of(1).items()} == {0: 50e6, 2: 1e9}
    assert set(slowing.links_of(0)) == set(slowing.links_of(2)) == {1} and not slowing.links_of(3)


@pytest.mark.parametrize(
    ("links", "processes", "message"),
    [
        (["0:1=5MB/s"], [], "A-B=RATE"),
        (["0-0=5MB/s"], [], "two different"),
        (["0-1=0B/s"], [], "rate above 0"),
        (["0-1=5MB/s", "1-0=6MB/s"], [], "slowed twice"),
        ([], ["1"], "NUMBER=FACTOR"),
        ([], ["1=0.5"], "factor from 1"),
        ([], ["1=2", "1=3"], "slowed twice"),
    ],
)
def test_what_cannot_be_is_refused(links: list[str], processes: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Slowing.parse(links, processes)


def test_processes_that_there_are_not() -> None:
    with pytest.raises(SpecError, match="process 2 is slowed"):
        Slowing.parse(links=["0-2=5MB/s"]).check(2)
    Slowing().check(1)
