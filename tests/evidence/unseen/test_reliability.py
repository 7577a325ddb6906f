"""Chances against what came true: shares by level, sources weighing alike, rows without a chance left out."""

from __future__ import annotations

import pytest
from tests.evidence.training_sample import SampleRow, predicted

from meshwright.evidence.unseen.reliability import LEVELS, reliability


def rows(source: str, chances: list[float | None]):  # type: ignore[no-untyped-def]
    found = [SampleRow(f"{source}-{n}", peak_bytes=1.0) for n in range(len(chances))]
    return [
        (
            row,
            predicted(
                row, 0.0, peak_chance=one, fit_chance=0.8, predicted_peak_bytes=2.0, upper_peak_bytes=2.5
            ),
        )
        for row, one in zip(found, chances, strict=True)
    ]


def test_chances_that_come_true_have_no_error() -> None:
    found = reliability(rows("a", [n / 10 for n in range(1, 11)]))
    assert found.levels == LEVELS and found.observed == pytest.approx(LEVELS)
    assert found.error == pytest.approx(0.0)
    assert found.fit_chance == pytest.approx(0.8) and found.bound_above == pytest.approx(0.25)


def test_a_source_of_many_rows_weighs_as_one_of_few() -> None:
    found = reliability([*rows("a", [0.0] * 98), *rows("b", [1.0, 1.0, None])])
    assert (found.num_rows, found.num_sources) == (100, 2)
    assert found.observed == pytest.approx([0.5] * len(LEVELS))
    assert found.error == pytest.approx(sum(abs(0.5 - level) for level in LEVELS) / len(LEVELS))


def test_without_measured_peaks_nothing_is_said() -> None:
    found = reliability(rows("a", [None]))
    assert found.error is None and found.observed == () and found.num_rows == 0
