"""Few rows of one's own: what they say of a kind of work is applied to rows that have it, and only there."""

from __future__ import annotations

import pytest
from tests.evidence.training_sample import SampleRow, predicted, skipped

from meshwright.evidence.unseen.few_rows import by_kind_of_work, by_median, median_error


def pair(name: str, error: float, **parts: float):  # type: ignore[no-untyped-def]
    row = SampleRow(name)
    return row, predicted(row, error, parts=parts)


def test_the_median_ratio_multiplies_everything() -> None:
    known = [pair("a-1", -0.5), pair("a-2", -0.5), pair("a-3", 9.0)]
    assert by_median(known)([pair("a-4", -0.5)]) == pytest.approx([1.0])


def test_what_only_some_rows_have_is_learned_of_these() -> None:
    """The host is twice as slow as thought; products are as thought. A row of products alone stays as it is."""
    known = [pair(f"a-{n}", -0.25, matmul=0.5, gap=0.25) for n in range(4)]
    known += [pair(f"b-{n}", 0.0, matmul=1.0) for n in range(4)]
    corrected = by_kind_of_work(known)(
        [pair("a-9", -0.25, matmul=0.5, gap=0.25), pair("b-9", 0.0, matmul=1.0)]
    )
    assert corrected == pytest.approx([1.0, 1.0], abs=0.02)
    assert by_median(known)([pair("b-9", 0.0)])[0] > 1.1


def test_what_runs_beside_computes_is_no_part_of_a_step() -> None:
    known = [pair(f"a-{n}", 0.0, matmul=1.0) for n in range(4)]
    rows = [pair("a-9", 0.0, matmul=1.0), pair("a-8", 0.0, matmul=1.0, REDUCE_GRAD=5.0)]
    first, second = by_kind_of_work(known)(rows)
    assert first == pytest.approx(second)


def test_skipped_rows_are_never_drawn_and_count_whole() -> None:
    rows = [pair(f"a-{n}", -0.5, matmul=1.0) for n in range(7)]
    assert median_error(rows, 3, 5, by_median) == pytest.approx(0.0)
    row = SampleRow("a-9")
    lost = [(row, skipped(row)) for _ in range(5)]
    assert median_error([*rows, *lost], 3, 5, by_median) == 1.0
    assert median_error(rows[:5], 3, 5, by_median) is None
