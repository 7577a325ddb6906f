"""Tests of tests/covering.py: the chosen cases have every pair, the others are tried with the slow tests."""

from __future__ import annotations

from tests.covering import covered, covering, product

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
