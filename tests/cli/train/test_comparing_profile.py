"""`compare PLAN` with traces of torch.profiler, `show` of one, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Runner
from tests.interop.profiler.kineto import data_parallel_job

from meshwright.ir.trace import Trace


@pytest.fixture
def gpu_plan(run: Runner, tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    asked = ("plan", "gpt2", "2xH100", "--global-batch", 8, "--seq", 1024, "--fix", "dp=2,recompute=none")
    assert run(*asked, "--top", 1, "-o", path).code == 0
    return path


def test_a_comparison_says_ranks_and_names(run: Runner, gpu_plan: Path, tmp_path: Path) -> None:
    files = data_parallel_job(tmp_path)
    ran = run(
        "compare", gpu_plan, *files, "--explain", "-o", tmp_path / "both.svg", "--report", tmp_path / "r.html"
    )
    assert ran.code == 0, ran.stderr
    for words in (
        "measured / predicted",
        "96.2% of the time has a name",
        "exposed: nothing computes",
        "rank0",
    ):
        assert words in ran.stdout, words
    assert (tmp_path / "both.svg").stat().st_size > 1000 and "matrix products" in (
        tmp_path / "r.html"
    ).read_text()
    kept = tmp_path / "measured.npz"
    data = run("compare", gpu_plan, tmp_path / "rank0.pt.trace.json.gz", "--json", "-o", kept).data
    assert Trace.load(kept).engine == "profiled"
    assert data["named_share"] == pytest.approx(1 - 40 / 1045) and data["num_ranks"] == 2
    assert [each["rank"] for each in data["ranks"]] == [0]


def test_a_profile_is_shown_and_not_run_again(run: Runner, tmp_path: Path) -> None:
    first, _ = data_parallel_job(tmp_path)
    shown = run("show", first)
    assert shown.code == 0 and "96.2% of the time has a name" in shown.stdout and "1 ms" in shown.stdout
    page = tmp_path / "page.html"
    assert run("view", first, "-o", page).code == 0 and "ALL_REDUCE" in page.read_text()
    ran = run("simulate", first)
    assert ran.code == 2 and "no program that can run again" in ran.stderr and "compare PLAN" in ran.stderr


@pytest.mark.parametrize(
    ("extra", "words"),
    [(("--different",), "--different is given with a profile"), (("--cluster", "8xH100"), "two traces")],
)
def test_options_that_mean_nothing_are_refused(
    run: Runner, trace_file: Path, tmp_path: Path, extra: tuple[str, ...], words: str
) -> None:
    files = data_parallel_job(tmp_path)
    ran = run("compare", trace_file, *files, *extra)
    assert ran.code == 2 and words in ran.stderr


def test_several_files_are_profiles(run: Runner, gpu_plan: Path, trace_file: Path, tmp_path: Path) -> None:
    (first, _) = data_parallel_job(tmp_path)
    ran = run("compare", gpu_plan, first, trace_file)
    assert ran.code == 2 and "trace.npz" in ran.stderr
    ran = run("compare", gpu_plan, first, tmp_path / "none.json")
    assert ran.code == 2 and "there is no file" in ran.stderr
    ran = run("compare", first, first)
    assert ran.code == 2 and "stands before a profile" in ran.stderr
