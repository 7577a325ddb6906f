"""Few rows of one's own: what they say of a kind of work is applied to rows that have it, and only there."""

from __future__ import annotations

import pytest
from tests.evidence.training_sample import SampleRow, predicted, skipped

from meshwright.evidence.unseen.few_rows import by_median, by_posterior, median_error


def pair(name: str, error: float, **parts: float):  # type: ignore[no-untyped-def]
    row = SampleRow(name)
    return row, predicted(row, error, parts=parts)


def test_the_median_ratio_multiplies_everything() -> None:
    known = [pair("a-1", -0.5), pair("a-2", -0.5), pair("a-3", 9.0)]
    assert by_median(known)([pair("a-4", -0.5)]) == pytest.approx([1.0])


def test_what_only_some_rows_have_is_learned_of_these() -> None:
    """The host is twice as slow as thought; products are as thought. A row of products alone stays as it is."""
    known = [pair(f"a-{n}", -0.25, matmul=0.5, gap=0.25) for n in range(4)]
    known += [pair(f"a-{n}", 0.0, matmul=1.0) for n in range(4, 8)]
    others = [pair("a-8", -0.25, matmul=0.5, gap=0.25), pair("a-9", 0.0, matmul=1.0)]
    assert by_posterior(known)(others) == pytest.approx([1.0, 1.0], abs=0.05)
    assert by_median(known)(others[1:])[0] > 1.1


def test_rows_of_a_source_are_read_with_a_prior_that_it_took_no_part_in() -> None:
    known = [pair(f"internevo-{n}", -0.2, matmul=1.0) for n in range(2)]
    unknown = [pair(f"nobody-{n}", -0.2, matmul=1.0) for n in range(2)]
    found = [by_posterior(rows)([pair("x-1", -0.2, attention=1.0)])[0] for rows in (known, unknown)]
    assert found[0] != pytest.approx(found[1], rel=1e-6)


def test_what_runs_beside_computes_is_no_part_of_a_step() -> None:
    known = [pair(f"a-{n}", 0.0, matmul=1.0) for n in range(4)]
    rows = [pair("a-9", 0.0, matmul=1.0), pair("a-8", 0.0, matmul=1.0, REDUCE_GRAD=5.0)]
    first, second = by_posterior(known)(rows)
    assert first == pytest.approx(second)


def test_skipped_rows_are_never_drawn_and_count_whole() -> None:
    rows = [pair(f"a-{n}", -0.5, matmul=1.0) for n in range(7)]
    assert median_error(rows, 3, 5, by_median) == pytest.approx(0.0)
    row = SampleRow("a-9")
    lost = [(row, skipped(row)) for _ in range(5)]
    assert median_error([*rows, *lost], 3, 5, by_median) == 1.0
    assert median_error(rows[:5], 3, 5, by_median) is None
