"""`show` of a data set: the lengths of its documents, from token shards and from files of lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Runner
from tests.executor.token_data import shards_of

LENGTHS = [3, 3, 5, 9, 40]


def test_a_file_of_lengths_is_drawn(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(LENGTHS))
    data = run("show", path, "--json").data
    assert (data["num_sequences"], data["num_tokens"], data["longest"]) == (5, 60, 40)
    assert [one["number"] for one in data["bins"]] == [2, 1, 1, 0, 1]
    told = run("show", path).stdout
    assert "mean 12, median 5" in told and "32 to 64" in told and "66.67%" in told and "████" in told


def test_documents_are_cut_at_a_context_length(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, LENGTHS)))
    data = run("show", path, "--seq", 16, "--json").data
    assert (data["num_sequences"], data["num_tokens"], data["longest"]) == (7, 60, 16)


def test_a_folder_of_token_shards_has_lengths(run: Runner, tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "shards", [[1] * n for n in range(1, 60)])
    data = run("show", shards.folder, "--json").data
    split = shards.train
    assert data["num_sequences"] == split.num_documents and data["num_tokens"] == split.num_tokens
    page = tmp_path / "page.html"
    run("show", shards.folder, "--report", page)
    assert "How long sequences are" in page.read_text()


def test_published_lengths_keep_their_squares(run: Runner, shared_data: Path) -> None:
    for name in ("distca_dist_wlbllm", "distca_dist_prolong"):
        data = run("show", shared_data / "workloads" / "training_lengths" / f"{name}.json.gz", "--json").data
        assert len(data["kept"]) <= 64
        assert abs(data["kept_mean_error"]) < 1e-3 and abs(data["kept_square_error"]) < 5e-3


@pytest.mark.parametrize("text", ["[1, 0]", "[0]"])
def test_a_length_of_no_token_is_refused(run: Runner, tmp_path: Path, text: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text)
    ran = run("show", path)
    assert ran.code == 2 and "0 tokens" in ran.stderr and "a token or more" in ran.stderr
