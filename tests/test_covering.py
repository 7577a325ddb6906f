"""Tests of tests/covering.py: the chosen cases have every pair, the others are tried with the slow tests."""

from __future__ import annotations

import pytest

from tests.covering import SLOW_ARE_TRIED, always, covered, covering, examples, product

ROWS = list(product({"a": (1, 2, 3), "b": (1, 2), "c": (1, 2)}))


def test_the_covering_set_has_every_pair() -> None:
    chosen = [ROWS[i] for i in covering(ROWS)]
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        assert {(r[first], r[second]) for r in chosen} == {(r[first], r[second]) for r in ROWS}
    assert len(chosen) < len(ROWS)


def test_no_case_is_lost() -> None:
    made = covered([tuple(row.values()) for row in ROWS], ROWS)
    assert [each.values for each in made] == [tuple(row.values()) for row in ROWS]
    quick = {number for number, each in enumerate(made) if not each.marks}
    assert quick == set(covering(ROWS)) and all(
        [mark.name for mark in made[number].marks] == ["slow"] for number in set(range(len(ROWS))) - quick
    )


def test_alone_every_value_is_tried_in_fewer_cases() -> None:
    chosen = [ROWS[i] for i in covering(ROWS, together=1)]
    for name in ("a", "b", "c"):
        assert {row[name] for row in chosen} == {row[name] for row in ROWS}
    assert len(chosen) == 3 < len(covering(ROWS))


def test_the_places_that_are_named_are_always_tried() -> None:
    made = always(["x", ("y",), "z"], {0, 2})
    assert [each.values for each in made] == [("x",), ("y",), ("z",)]
    assert [bool(each.marks) for each in made] == [False, True, False]


def test_a_searching_test_tries_all_its_examples_with_the_slow_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for are_tried, number in ((False, 25), (True, 200)):
        monkeypatch.setitem(SLOW_ARE_TRIED, "slow", are_tried)
        assert examples(200) == number
