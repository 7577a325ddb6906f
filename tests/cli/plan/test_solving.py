"""`plan --solve` and `--pareto`: the number first, what was tried, the plans; an impossible deadline is the honest no."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Runner

from meshwright.specs import Plan

JOB = ("plan", "llama-3.2-1b", "8xH100", "--global-batch", 64)
WITHIN = ("--fix", "recompute=none,tp=1,cp=1,microbatch_size=1", "--top", 1)
GPUS = (*JOB, "--seq", 4096, *WITHIN, "--solve", "gpus")


def test_the_longest_sequence(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    job = (*JOB, "--solve", "seq", "--fix", "tp=8,pp=1,recompute=none,microbatch_size=1", "--top", 1)
    ran = run(*job, "--json", "-o", file)
    assert ran.code == 0 and ran.data["solve"] == "seq" and ran.data["value"] % 1024 == 0
    assert Plan.load(file).workload.sequence_length == ran.data["value"]
    refused = [each["value"] for each in ran.data["attempts"] if not each["does"]]
    assert refused and min(refused) > ran.data["value"]
    shown = run(*job).stdout
    assert f"{ran.data['value']:,} tokens are the longest sequence" in shown and "nothing fits" in shown


def test_the_largest_microbatch(run: Runner) -> None:
    ran = run(
        *JOB, "--seq", 4096, "--solve", "microbatch", "--fix", "tp=1,pp=1,cp=1,recompute=none", "--json"
    )
    assert ran.code == 0 and 64 % ran.data["value"] == 0
    assert f"microbatch_size = {ran.data['value']}" in ran.data["plans"][0]["plan"]


@pytest.mark.slow
def test_the_fewest_devices_by_a_deadline(run: Runner) -> None:
    ran = run(*GPUS, "--deadline", "2d", "--tokens", "100B", "--price", 2, "--json")
    assert ran.code == 0 and ran.data["value"] % 8 == 0 and ran.data["plans"]
    assert ran.data["plans"][0]["time_to_tokens_s"] <= 2 * 86400
    dollars = ran.data["value"] * 2 * ran.data["plans"][0]["step_time_s"] / 3600 / (64 * 4096) * 1e9
    assert ran.data["plans"][0]["usd_per_billion_tokens"] == pytest.approx(dollars)
    late = [each["value"] for each in ran.data["attempts"] if not each["does"]]
    assert all(value < ran.data["value"] for value in late)
    shown = run(*GPUS, "--deadline", "2d", "--tokens", "100B").stdout
    assert f"{ran.data['value']} devices read 100 G tokens in" in shown and "tried: " in shown


def test_without_a_deadline_the_fewest_devices_that_fit(run: Runner) -> None:
    ran = run(*GPUS)
    assert ran.code == 0 and "8 devices, in whole nodes, are the fewest on which a plan fits" in ran.stdout
    ran = run(*GPUS, "--deadline", "2d")
    assert ran.code == 2 and "--tokens" in ran.stderr


def test_an_impossible_deadline_is_the_honest_no(run: Runner) -> None:
    ran = run(*GPUS, "--deadline", "1h", "--tokens", "1T", "--max-gpus", 32)
    said = " ".join(ran.stderr.split())
    assert ran.code == 3 and ran.stdout == "" and "on 32 devices" in said and "--deadline from" in said


def test_the_frontier(run: Runner, tmp_path: Path) -> None:
    job = (*JOB, "--seq", 4096, "--pareto", "--fix", "cp=1,pp=1,microbatch_size=1")
    file = tmp_path / "plan.toml"
    ran = run(*job, "--json", "-o", file)
    plans = ran.data["plans"]
    steps, peaks = ([each[name] for each in plans] for name in ("step_time_s", "peak_memory_bytes"))
    assert ran.code == 0 and len(plans) >= 2 and file.is_file()
    assert steps == sorted(steps) and peaks == sorted(peaks, reverse=True)
    assert ran.data["num_candidates"] > ran.data["num_on_frontier"] >= ran.data["num_simulated"] >= len(plans)
    assert "slower" in run(*job).stdout
