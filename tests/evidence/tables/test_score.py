"""The summary of a table: which rows are scored, averages over sources, lines of their own, pairs of layouts."""

import json

import pytest
from tests.evidence.training_sample import SampleRow, predicted, skipped

from meshwright.evidence.tables.score import newest_releases, release_number, score_table
from meshwright.specs.error import SpecError

JOB = {
    "model": "llama",
    "gpus": "64",
    "gpu": "H100",
    "seq": "4096",
    "global_batch_seqs": "128",
    "precision": "bf16",
}


def test_sources_count_alike_whatever_their_size() -> None:
    rows = [*(SampleRow(f"big-{number}") for number in range(9)), SampleRow("small_one-1")]
    predictions = [predicted(row, 0.02 if row.source == "big" else -0.30) for row in rows]
    found = score_table(rows, reversed(predictions))
    core = found.lines["core"]
    assert core.average_median_error == pytest.approx(0.16)
    assert core.average_bias == pytest.approx(0.16)
    assert core.pooled.median_error == pytest.approx(0.02)
    assert found.sources["small_one"].bias == pytest.approx(-0.30)
    assert core.worst_source == "big", "a source of one row is never the worst"


def test_of_a_configuration_only_the_newest_release_is_scored() -> None:
    rows = [
        SampleRow("a-1", group="g0", release="25.11"),
        SampleRow("a-2", group="g0", release="26.04.01"),
        SampleRow("a-3", group="g0", release="26.04"),
        SampleRow("b-1", group="g0"),
    ]
    assert [row.row_id for row in newest_releases(rows)] == ["a-2", "b-1"]
    errors = {"a-1": 0.5, "a-2": 0.1, "a-3": 0.5, "b-1": 0.1}
    found = score_table(rows, [predicted(row, errors[row.row_id]) for row in rows])
    assert found.num_core_rows == 4 and found.lines["core"].pooled.num_rows == 2
    assert found.lines["core"].pooled.mean_error == pytest.approx(0.1)


def test_releases_are_ordered_by_their_numbers() -> None:
    assert (
        release_number("26.10 container")
        > release_number("26.9")
        > release_number("v3.1")
        > release_number("")
    )


def test_kinds_of_rows_are_lines_of_their_own() -> None:
    rows = [
        SampleRow("a-1"),
        SampleRow("a-2", is_moe=True, is_float8=True),
        SampleRow("a-3", sequence_length=8192),
        SampleRow("a-4", sequence_length=16384),
        SampleRow("a-5", is_core=False),
    ]
    found = score_table(rows, [predicted(row, 0.1 * number) for number, row in enumerate(rows)])
    counts = {name: line.pooled.num_rows for name, line in found.lines.items()}
    assert counts == {
        "core": 4,
        "dense": 3,
        "moe": 1,
        "float8": 1,
        "long_sequences": 1,
        "moe_newest_release": 1,
        "not_core": 1,
    }
    assert found.lines["long_sequences"].pooled.median_error == pytest.approx(0.3)
    assert found.lines["not_core"].pooled.median_error == pytest.approx(0.4)


def test_moe_rows_of_the_newest_release_of_each_model_and_chip() -> None:
    def row(name: str, release: str, gpu: str) -> SampleRow:
        return SampleRow(name, is_moe=True, release=release, values={"model": "mixtral", "gpu": gpu})

    rows = [row("a-1", "25.11", "H100"), row("a-2", "26.02", "H100"), row("a-3", "25.09", "B200")]
    found = score_table(
        rows, [predicted(one, error) for one, error in zip(rows, (0.9, 0.1, 0.2), strict=True)]
    )
    assert found.lines["moe"].pooled.num_rows == 3
    assert found.lines["moe_newest_release"].pooled.num_rows == 2
    assert found.lines["moe_newest_release"].pooled.median_error == pytest.approx(0.15)


def test_skipped_share_is_of_all_core_rows() -> None:
    rows = [SampleRow("a-1"), SampleRow("a-2"), SampleRow("a-3", is_core=False)]
    found = score_table(rows, [predicted(rows[0], 0.0), skipped(rows[1]), skipped(rows[2])])
    assert found.num_core_skipped == 1 and found.skipped_share == 0.5
    assert found.sources["a"].mean_error == 0.5


@pytest.mark.parametrize(
    ("measured", "errors", "num_pairs", "share"),
    [
        ((1.0, 1.2), (0.0, 0.0), 1, 1.0),
        ((1.0, 1.2), (0.3, 0.0), 1, 0.0),
        ((1.0, 1.05), (0.3, 0.0), 0, None),
        ((1.0, 1.2), (0.2, 0.0), 1, 0.0),  # equal predictions are no order
        ((1.0, 1.2), (None, 0.0), 1, 0.0),
    ],
)
def test_layouts_of_one_job_are_ordered(
    measured: tuple[float, float], errors: tuple[float | None, float], num_pairs: int, share: float | None
) -> None:
    rows = [
        SampleRow(f"a-{number}", seconds, values={**JOB, "tp": str(number)})
        for number, seconds in enumerate(measured)
    ]
    predictions = [
        skipped(row) if error is None else predicted(row, error)
        for row, error in zip(rows, errors, strict=True)
    ]
    found = score_table(rows, predictions)
    assert (found.num_pairs, found.pairs_ordered) == (num_pairs, share)


@pytest.mark.parametrize("other", [{"gpus": "8"}, {"precision": "fp8"}, {"tp": "1"}])
def test_other_jobs_and_equal_layouts_are_no_pairs(other: dict[str, str]) -> None:
    rows = [
        SampleRow("a-1", 1.0, values={**JOB, "tp": "1"}),
        SampleRow("a-2", 2.0, values={**JOB, "tp": "2", **other}),
    ]
    assert score_table(rows, [predicted(row, 0.0) for row in rows]).num_pairs == 0


def test_a_row_without_a_prediction_is_refused() -> None:
    with pytest.raises(SpecError, match="a-2"):
        score_table([SampleRow("a-1"), SampleRow("a-2")], [predicted(SampleRow("a-1"), 0.0)])


def test_the_summary_is_plain_data_even_of_nothing() -> None:
    found = json.loads(json.dumps(score_table([], []).to_dict()))
    assert found["num_rows"] == 0 and found["skipped_share"] == 0.0
    assert found["lines"]["core"]["average_median_error"] is None
    assert found["pairs"] == {"num_pairs": 0, "ordered_share": None}
