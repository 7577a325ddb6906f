"""Regret, ties, pairs, releases, excluded rows: made-up jobs whose answers are known by hand, and the published ones."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.plan_regret import (
    BASELINES,
    MeasuredJob,
    MeasuredLayout,
    chosen_regret,
    left_out_seconds,
    measured_job,
    measured_jobs,
    memory_checks,
    most_replicas,
    pair_order,
    rows_by_job,
)
from tests.benchmarks.step_sample import made_steps, noise, step_row, three_sources

from meshwright.evidence.tables.score import newest_releases
from meshwright.evidence.tables.table import read_training_table
from meshwright.specs import Cluster
from meshwright.specs.error import SpecError


def job(*layouts: tuple[float, float | None, int]) -> MeasuredJob:
    """(measured, predicted, replicas) of every layout."""
    made = (MeasuredLayout(f"a-{number}", *layout) for number, layout in enumerate(layouts))
    return MeasuredJob("a", "made up", tuple(made))


def test_regret_is_of_the_least_predicted_step_whatever_is_predicted_of_the_best() -> None:
    assert chosen_regret(job((10.0, 5.0, 1), (11.0, 4.0, 1), (20.0, 9.0, 1))) == pytest.approx(0.1)
    assert chosen_regret(job((10.0, 3.0, 1), (11.0, 4.0, 1))) == 0.0


def test_of_tied_predictions_the_worst_counts_also_where_they_differ_by_rounding() -> None:
    assert chosen_regret(job((10.0, 4.0, 1), (15.0, 4.0, 1), (12.0, 4.0, 1))) == pytest.approx(0.5)
    assert chosen_regret(job((10.0, 4.0, 1), (15.0, 4.0 * (1 + 1e-12), 1))) == pytest.approx(0.5)
    assert chosen_regret(job((10.0, 4.0, 1), (15.0, 4.0 * (1 + 1e-6), 1))) == 0.0


def test_what_is_not_predicted_is_chosen_last_and_where_nothing_is_the_worst_counts() -> None:
    assert chosen_regret(job((10.0, None, 1), (13.0, 99.0, 1))) == pytest.approx(0.3)
    assert chosen_regret(job((10.0, None, 1), (13.0, None, 1), (12.0, None, 1))) == pytest.approx(0.3)


def test_baselines_take_the_first_the_mean_and_the_most_replicas() -> None:
    made = job((12.0, 1.0, 2), (10.0, 1.0, 4), (15.0, 1.0, 8), (11.0, 1.0, 8))
    assert {name: regret(made) for name, regret in BASELINES.items()} == pytest.approx(
        {"first of the table": 0.2, "random (expected)": 0.2, "most data parallel that fits": 0.3}
    )


def test_pairs_within_six_per_cent_do_not_count_and_ties_are_wrong() -> None:
    # 10 against 10.6 is no pair, 10 against 10.61 is one
    assert pair_order([job((10.0, 2.0, 1), (10.6, 1.0, 1))]).num_pairs == 0
    assert pair_order([job((10.0, 2.0, 1), (10.6, 1.0, 1))]).share is None
    wrong = pair_order([job((10.0, 2.0, 1), (10.61, 1.0, 1))])
    assert (wrong.num_pairs, wrong.num_right) == (1, 0)
    # a before b before c as measured; predicted b < a = c: right is b before c only
    found = pair_order([job((20.0, 2.0, 1), (10.0, 2.0, 1), (15.0, 1.0, 1))])
    assert (found.num_pairs, found.num_right) == (3, 1)
    assert found.share == pytest.approx(1 / 3)


def test_pairs_are_within_jobs_and_unpredicted_ones_are_wrong_whatever_a_tie_counts() -> None:
    jobs = [job((10.0, 1.0, 1), (20.0, 2.0, 1)), job((40.0, None, 1), (80.0, 1.0, 1), (60.0, None, 1))]
    found = pair_order(jobs, tie=0.5)
    assert (found.num_pairs, found.num_right) == (4, 1)
    chance = pair_order(jobs, lambda layout: 0.0, tie=0.5)
    assert (chance.num_pairs, chance.num_right) == (4, 2)
    replicas = pair_order([job((10.0, 1.0, 8), (20.0, 1.0, 4), (30.0, 1.0, 4))], most_replicas, tie=0.5)
    assert (replicas.num_pairs, replicas.num_right) == (3, 2.5)


def note(release: str) -> str:
    """What a row says of its software."""
    return f"{release} NeMo Container"


def test_jobs_are_of_one_source_and_workload_and_have_two_layouts() -> None:
    rows = [
        step_row("a-1", 2.0, tp=1, dp=8),
        step_row("b-2", 3.0, tp=2, dp=4),  # another source
        step_row("a-3", 4.0, tp=2, dp=4, global_batch_seqs=32),  # another batch
        step_row("a-4", 5.0, tp=2, dp=4, precision="fp8"),
        step_row("a-5", 6.0, tp=2, dp=4, gpu="A100-80GB-SXM"),
        step_row("a-6", 7.0, tp=2, dp=4, seq=4096),
        step_row("a-7", 8.0, tp=2, dp=4, gpus=16),
    ]
    assert rows_by_job(rows) == []
    found = rows_by_job([*rows, step_row("a-8", 9.0, tp=2, dp=4)])
    assert [[row.row_id for row in group] for group in found] == [["a-1", "a-8"]]


def test_of_one_layout_the_newest_release_counts_and_layouts_of_several_releases_are_one_job() -> None:
    rows = [
        step_row("a-1", 2.0, note=note("25.09")),
        step_row("a-2", 1.9, note=note("26.02")),
        step_row("a-3", 1.8, note=note("26.02")),  # equally new: the first stays
        step_row("a-4", 2.2, note=note("25.11")),
        step_row("a-5", 3.0, note=note("25.09"), tp=2, dp=4),
    ]
    (group,) = rows_by_job(rows)
    assert [row.row_id for row in group] == ["a-2", "a-5"]
    assert rows_by_job(rows[:4]) == [], "releases of one layout are no job"


def test_a_job_says_what_differs_and_counts_replicas_itself() -> None:
    rows = [
        step_row("a-1", 2.0, tp=2, dp=99, extras="x", micro_batch_seqs=1),
        step_row("a-2", 3.0, tp=1, dp=99, extras="y", micro_batch_seqs=1),
    ]
    made = measured_job(rows, {"a-1": 1.5})
    assert [(one.num_replicas, one.predicted_s) for one in made.layouts] == [(4, 1.5), (8, None)]
    assert made.differs_in == ("tp", "extras") and not made.is_of_software
    assert made.best_s == 2.0 and made.regret_of(made.layouts[1]) == 0.5
    words = measured_job([rows[0], step_row("a-3", 3.0, tp=2, dp=99, extras="z", micro_batch_seqs=1)], {})
    assert words.is_of_software


@pytest.mark.slow
def test_a_whole_source_is_left_out_of_the_fit_of_its_own_jobs() -> None:
    """What source d says of itself, however wrong, does not move its predictions; what others say does."""
    own = [step_row("d-1", 5.0), step_row("d-2", 7.0, tp=2, dp=4)]
    others = [step.row for step in made_steps(three_sources(), noise)]
    before = left_out_seconds(own, [*others, *own])
    # the point of linearisation is of all rows, so equal to far less than what the rows would move
    assert left_out_seconds(own, others) == pytest.approx(before, rel=2e-3)
    slower = [replace(row, measured_s=1.5 * row.measured_s) for row in others]
    after = left_out_seconds(own, slower)
    assert all(after[name] > 1.05 * before[name] for name in before)
    (made,) = measured_jobs(own, others)
    assert [one.predicted_s for one in made.layouts] == list(left_out_seconds(own, others).values())


def test_two_other_sources_are_needed() -> None:
    with pytest.raises(SpecError, match="two sources or more"):
        left_out_seconds([step_row("a-1")], three_sources()[:6])


def test_measured_rows_are_held_against_the_planners_rule() -> None:
    large = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672, "vocab": 128256, "seq": 8192, "zero": 3}
    checks, skipped = memory_checks(
        [
            step_row("a-1"),
            step_row("a-2", **large, recompute="none"),
            step_row("a-3", **{**large, "layers": 44}, recompute=""),
            step_row("a-4", extras="LoRA"),
        ]
    )
    assert list(skipped) == ["a-4"] and "adapters" in skipped["a-4"]
    assert [check.rejection is None for check in checks] == [True, False, False]
    assert [check.is_told for check in checks] == [True, True, False]
    rejected = checks[1].rejection
    assert (
        rejected is not None
        and rejected.needed_bytes > rejected.available_bytes == Cluster("H100").memory_bytes
    )
    assert sum(size for _, size in rejected.holders) == pytest.approx(rejected.needed_bytes, rel=1e-6)


def test_an_excluded_row_says_whether_recomputing_all_makes_it_fit() -> None:
    # 8 billion parameters on 8 devices: 16 GB of state and gradients; 8 sequences a microbatch keep far more than 80 GB
    sizes = {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "ffn": 14336,
        "seq": 8192,
        "zero": 3,
        "micro_batch_seqs": 8,
    }
    ((fits,), _) = memory_checks([step_row("a-1", **sizes, global_batch_seqs=64)])
    ((never,), _) = memory_checks(
        [step_row("a-2", **{**sizes, "zero": 0, "layers": 64}, global_batch_seqs=64)]
    )
    assert fits.rejection is not None and fits.fits_recomputed
    assert never.rejection is not None and not never.fits_recomputed


def test_the_published_jobs(shared_data: Path) -> None:
    """All 24 of them, without predictions: the numbers of the baselines are known from the tables alone."""
    tables = sorted((shared_data / "calibration" / "training").glob("*.csv"))
    rows = [row for table in tables if "stage_times" not in table.name for row in read_training_table(table)]
    jobs = [measured_job(group, {}) for group in rows_by_job(rows)]
    assert len(jobs) == 24 and sum(len(one.layouts) for one in jobs) == 68
    assert pair_order(jobs).num_pairs == 46 and pair_order(jobs).num_right == 0
    assert sum(not one.is_of_software for one in jobs) == 11
    random = [BASELINES["random (expected)"](one) for one in jobs]
    assert statistics.median(random) == pytest.approx(0.076, abs=0.001)
    assert all(math.isclose(chosen_regret(one), max(map(one.regret_of, one.layouts))) for one in jobs)


@pytest.mark.slow
def test_published_layouts_of_one_source_are_ordered_by_what_others_say(shared_data: Path) -> None:
    folder = shared_data / "calibration" / "training"
    own = [row for row in read_training_table(folder / "simumax_b200.csv") if row.is_core]
    others = []
    for name in ("torchtitan", "megatron_bridge"):
        rows = [row for row in read_training_table(folder / f"{name}.csv") if row.is_core]
        newest = {row.row_id for row in newest_releases(rows)}
        others += [row for row in rows if row.row_id in newest]
    jobs = measured_jobs(own, others)
    order = pair_order(jobs)
    assert len(jobs) == 4 and order.num_pairs == 6
    assert (order.share or 0.0) >= 0.8 and statistics.median(map(chosen_regret, jobs)) <= 0.02
