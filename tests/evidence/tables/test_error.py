"""Errors of one row and of a set: their sign, what a skipped row costs, intervals and memory."""

import pytest
from tests.evidence.training_sample import SampleRow, predicted, skipped

from meshwright.evidence.tables.score import RowPrediction, memory_error, score


def test_error_is_predicted_over_measured_less_one() -> None:
    assert RowPrediction("a-1", 2.0, predicted_s=3.0).error == pytest.approx(0.5)
    assert RowPrediction("a-1", 2.0, predicted_s=1.0).error == pytest.approx(-0.5)
    assert RowPrediction("a-1", 2.0, skipped="why").error == -1.0


def test_a_skipped_row_counts_as_100_percent_but_has_no_direction() -> None:
    rows = [SampleRow(f"a-{number}") for number in range(4)]
    found = score(
        [(row, predicted(row, error)) for row, error in zip(rows, (0.05, -0.15, 0.30), strict=False)]
        + [(rows[3], skipped(rows[3]))]
    )
    assert found.num_rows == 4 and found.num_skipped == 1
    assert found.median_error == pytest.approx((0.15 + 0.30) / 2)
    assert found.mean_error == pytest.approx(1.5 / 4)
    assert found.within_10 == 0.25 and found.within_20 == 0.5
    assert found.bias == pytest.approx(0.2 / 3)


def test_coverage_and_width_are_of_predicted_rows_with_an_interval() -> None:
    rows = [SampleRow(f"a-{number}", measured_s=10.0) for number in range(4)]
    found = score(
        [
            (rows[0], predicted(rows[0], 0.05, 0.10)),
            (rows[1], predicted(rows[1], 0.30, 0.20)),
            (rows[2], predicted(rows[2], 0.0)),
            (rows[3], skipped(rows[3])),
        ]
    )
    assert found.coverage == 0.5
    assert found.half_width == pytest.approx(0.15)
    assert score([(rows[2], predicted(rows[2], 0.0))]).coverage is None


def test_memory_counts_rows_with_a_peak_and_missing_ones_against_us() -> None:
    rows = [
        SampleRow(f"a-{number}", peak_bytes=peak) for number, peak in enumerate((100.0, 100.0, 100.0, None))
    ]
    found = score(
        [
            (rows[0], predicted(rows[0], 0.0, predicted_peak_bytes=90.0, upper_peak_bytes=110.0)),
            (rows[1], predicted(rows[1], 0.0, predicted_peak_bytes=80.0, upper_peak_bytes=95.0)),
            (rows[2], skipped(rows[2])),
            (rows[3], predicted(rows[3], 0.0, predicted_peak_bytes=5.0, upper_peak_bytes=5.0)),
        ]
    )
    assert found.num_memory_rows == 3
    assert found.memory_error == pytest.approx(0.2)
    assert found.above_upper == pytest.approx(2 / 3)
    assert memory_error(rows[3], predicted(rows[3], 0.0, predicted_peak_bytes=5.0)) is None


def test_a_model_without_memory_has_no_memory_score() -> None:
    row = SampleRow("a-1", peak_bytes=100.0)
    found = score([(row, predicted(row, 0.1))])
    assert found.num_memory_rows == 1 and found.memory_error is None and found.above_upper is None


def test_nothing_scores_as_nothing() -> None:
    found = score([])
    assert found.num_rows == 0 and found.median_error is None and found.within_10 is None
