"""`plan --lengths`: the step of a distribution of lengths, kept in the plan's file, the same in `simulate`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import Runner

from meshwright import api

JOB = (
    "plan",
    "llama-3.2-1b",
    "4xH100",
    "--global-batch",
    16,
    "--seq",
    4096,
    "--fix",
    "microbatch_size=1,dp=4",
)


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Documents of 100 tokens to three sequences."""
    path = tmp_path / "lengths.txt"
    drawn = np.random.default_rng(1).lognormal(6.5, 1.2, 3000).astype(int)
    path.write_text("\n".join(str(max(100, min(12_000, each))) for each in drawn))
    return path


def test_a_plan_of_lengths_is_of_drawn_batches_and_keeps_them(
    run: Runner, tmp_path: Path, lengths: Path
) -> None:
    full = run(*JOB, "--json").data
    found = run(*JOB, "--lengths", lengths, "-o", tmp_path / "plan.toml", "--json").data
    step_s = found["plans"][0]["step_time_s"]
    assert step_s < full["plans"][0]["step_time_s"] and full["drawn_steps_s"] == []
    assert np.mean(found["drawn_steps_s"]) == pytest.approx(step_s, rel=1e-9)
    assert len(found["drawn_steps_s"]) == 16 and len(set(found["drawn_steps_s"])) == 16
    kept = tomllib.loads((tmp_path / "plan.toml").read_text())["workload"]["lengths"]
    assert len(kept) <= 64
    simulated = run("simulate", tmp_path / "plan.toml", "--json").data
    assert simulated["step"]["value"] == pytest.approx(step_s, rel=1e-9)
    told = run(*JOB, "--lengths", lengths).stdout
    assert "16 of them with a standard error of" in " ".join(told.split())


def test_simulate_takes_other_lengths_than_the_plan_has(run: Runner, tmp_path: Path, lengths: Path) -> None:
    plan = tmp_path / "plan.toml"
    run(*JOB, "-o", plan)
    full, mixed = (
        run("simulate", plan, *more, "--json").data["step"]["value"] for more in ((), ("--lengths", lengths))
    )
    assert mixed < full
    assert api.simulate(plan, lengths=lengths).metadata["step"]["value"] == pytest.approx(mixed, rel=1e-12)


@pytest.mark.parametrize("more", [("--pareto",), ("--solve", "microbatch")])
def test_what_is_solved_for_has_full_sequences(run: Runner, lengths: Path, more: tuple[str, ...]) -> None:
    ran = run(*JOB, "--lengths", lengths, *more)
    assert ran.code == 2 and "--lengths" in ran.stderr


def test_lengths_of_nothing_are_refused(run: Runner, tmp_path: Path) -> None:
    ran = run(*JOB, "--lengths", tmp_path)
    assert ran.code == 2 and "without token shards" in ran.stderr
    ran = run("simulate", "--schedule", "1f1b", "--lengths", tmp_path)
    assert ran.code == 2
