"""The order of layouts of one job: regret of the first choice, and rank correlation."""

from __future__ import annotations

import pytest
from tests.evidence.training_sample import table_row

from meshwright.evidence.tables.score import RowPrediction
from meshwright.evidence.tables.table import training_row
from meshwright.evidence.unseen.ordering import LEAST_LAYOUTS, ORDERS, orders


def job(predicted: list[float], tp: list[int] | None = None, fit_chances: list[float] | None = None):  # type: ignore[no-untyped-def]
    """Layouts of one job that took 1, 2, 3, ... seconds."""
    found = []
    for number, seconds in enumerate(predicted):
        degree = 1 if tp is None else tp[number]
        fields = {"tp": degree, "dp": 8 // degree, "micro_batch_seqs": 1}
        values = {key: str(value) for key, value in table_row(f"a-{number}", number + 1.0, **fields).items()}
        row = training_row(values, "a.csv", "a")
        chance = None if fit_chances is None else fit_chances[number]
        found.append((row, RowPrediction(row.row_id, row.measured_s, seconds, fit_chance=chance)))
    return found


def test_the_right_order_has_no_regret() -> None:
    (found,) = orders(job([float(n) for n in range(1, 13)]), ORDERS["meshwright"])
    assert (found.num_layouts, found.regret, found.correlation) == (12, 0.0, pytest.approx(1.0))


def test_the_regret_is_of_the_first_choice_as_it_was_measured() -> None:
    (found,) = orders(job([2.0, 1.0, *(float(n) for n in range(3, 13))]), ORDERS["meshwright"])
    assert found.regret == pytest.approx(1.0) and 0.98 < found.correlation < 1.0


def test_the_most_data_parallel_layout_divides_devices_by_no_other_axis() -> None:
    (found,) = orders(job([1.0] * 12, [8] * 6 + [1] * 6), ORDERS["most data parallel"])
    assert found.regret == pytest.approx(9.0)  # of the six equal ones the middle, which took ten seconds
    (book,) = orders(job([1.0] * 12, [8] * 6 + [1] * 6), ORDERS["the book's advice"])
    assert book.regret == pytest.approx(3.0)


def test_few_layouts_are_no_order() -> None:
    assert not orders(job([1.0] * (LEAST_LAYOUTS - 1)), ORDERS["meshwright"])


def test_the_first_choice_is_the_fastest_that_fits_and_the_order_that_of_seconds() -> None:
    """The layout that is predicted fastest took longest, and might not fit."""
    seconds = [*(float(n) for n in range(2, 13)), 1.0]
    (all_fit,) = orders(job(seconds), ORDERS["meshwright"])
    (found,) = orders(job(seconds, fit_chances=[*[1.0] * 11, 0.5]), ORDERS["meshwright"])
    assert (all_fit.regret, found.regret) == (pytest.approx(11.0), pytest.approx(0.0))
    assert found.correlation == pytest.approx(all_fit.correlation) and found.correlation < 1.0
