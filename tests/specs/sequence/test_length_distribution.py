"""Lengths of documents: cut without losing a token, kept as few pairs within what they say, read from files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import SpecError
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.length_file import is_length_file, read_lengths

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=300)
SMALL_ERROR = (
    0.005  # of the mean square of 64 pairs for lengths whose largest are thousands of times the smallest
)


@given(lengths=LENGTHS)
def test_what_is_told_is_what_numpy_says(lengths: list[int]) -> None:
    found = LengthDistribution.of(lengths)
    assert (found.num_sequences, found.num_tokens) == (len(lengths), sum(lengths))
    assert found.mean == pytest.approx(np.mean(lengths)) and found.longest == max(lengths)
    assert found.mean_square == pytest.approx(np.mean(np.square(lengths)))
    for share in (0.5, 0.99):
        assert found.quantile(share) == int(np.quantile(lengths, share, method="inverted_cdf"))


@given(lengths=LENGTHS)
def test_bins_are_all_sequences_and_tokens(lengths: list[int]) -> None:
    bins = LengthDistribution.of(lengths).histogram
    assert sum(one.number for one in bins) == len(lengths)
    assert sum(one.share for one in bins) == pytest.approx(1)
    assert sum(one.token_share for one in bins) == pytest.approx(1)
    for one in bins:
        assert one.number == sum(one.least <= length < one.end for length in lengths)


@given(lengths=LENGTHS, context=st.integers(1, 3000))
def test_cutting_loses_no_token(lengths: list[int], context: int) -> None:
    cut = LengthDistribution.of(lengths).cut(context)
    assert cut.num_tokens == sum(lengths) and cut.longest <= context
    assert cut.num_sequences == sum(-(-length // context) for length in lengths)


@given(lengths=LENGTHS)
def test_what_is_kept_is_a_workload_and_says_its_error(lengths: list[int]) -> None:
    found = LengthDistribution.of(lengths)
    kept = found.kept(16)
    assert len(kept.pairs) <= 16
    work = Workload(1, found.longest, kept.pairs)
    assert work.mean_length == pytest.approx(found.mean * (1 + kept.mean_error), rel=1e-9)
    square = sum(length**2 * share for length, share in kept.pairs)
    assert square == pytest.approx(found.mean_square * (1 + kept.square_error), rel=1e-9)


def test_a_long_tail_is_kept() -> None:
    drawn = np.random.default_rng(0).lognormal(7, 1.5, 20_000)
    found = LengthDistribution.of(np.maximum(1, drawn).astype(np.int64))
    kept = found.kept()
    assert len(kept.pairs) <= 64 and kept.pairs[-1][0] > found.longest / 2
    assert abs(kept.mean_error) < 1e-4 and abs(kept.square_error) < SMALL_ERROR


def test_few_lengths_are_kept_as_they_are() -> None:
    kept = LengthDistribution.of([3, 3, 5, 9]).kept()
    assert kept == (((3, 0.5), (5, 0.25), (9, 0.25)), 0.0, 0.0)


@pytest.mark.parametrize("name", ["lengths.txt", "lengths.json", "lengths.txt.gz", "lengths.json.gz"])
def test_files_of_lengths(tmp_path: Path, name: str) -> None:
    text = json.dumps([5, 1, 5]) if "json" in name else "5\n1\n5\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert is_length_file(path)
    found = read_lengths(path)
    assert (found.lengths.tolist(), found.counts.tolist(), found.name) == ([1, 5], [1, 2], name)


@pytest.mark.parametrize(
    "text", ["", "words", "[1, 2.5]", "[1, true]", "[1", '["1"]', "3 4\n-1", "99999999999999999999"]
)
def test_what_is_no_file_of_lengths_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"lengths\.txt"):
        read_lengths(path)


def test_lengths_whose_sum_would_overflow_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge.txt"
    file.write_text("100\n9000000000000000000\n9000000000000000000\n")
    with pytest.raises(SpecError, match=r"huge\.txt has a sequence of 9000000000000000000 tokens"):
        read_lengths(file)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json.gz"
    path.write_bytes(gzip.compress(b"[1, 2, 3]")[:-6])
    with pytest.raises(SpecError, match="cannot be read"):
        read_lengths(path)
    assert not is_length_file(tmp_path / "there_is_none.txt")
