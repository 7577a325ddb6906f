"""Whom a training tells of its steps beside files: W&B and MLflow, whose packages need not be there."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Runner
from tests.sink_calls import Calls, calls

from meshwright.executor.job.pool import Pool

__all__ = ["calls"]


def test_a_training_tells_both_every_step(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path, calls: Calls
) -> None:
    ran = run(
        "train", plan_file, "--iterations", 2, "--wandb", "mine", "--mlflow", tmp_path / "runs", "--json"
    )
    assert ran.code == 0, ran.stderr
    facts = calls[0][1]["config"]
    assert facts["model"] == "small" and facts["first_step"] == 0 and "pp=2" in facts["plan"]
    logged = [(step, values["loss"]) for name, step, values in (one for one in calls if one[0] == "log")]
    assert logged == [(1, ran.data["losses"][0]), (2, ran.data["losses"][1])]
    batches = [{key: value for key, value, _ in one[2]} for one in calls if one[0] == "log_batch"]
    assert [batch["loss"] for batch in batches] == ran.data["losses"]
    assert {one[0] for one in calls[-2:]} == {"finish", "set_terminated"}


def test_a_resumed_training_tells_the_runs_it_had(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path, calls: Calls
) -> None:
    told = ("train", plan_file, "--wandb", "mine", "--checkpoints", tmp_path / "kept", "--json")
    assert run(*told, "--iterations", 1).code == 0
    ran = run(*told, "--iterations", 2, "--resume")
    assert ran.code == 0, ran.stderr
    begun = [one[1] for one in calls if one[0] == "init"]
    assert "id" not in begun[0] and begun[1]["id"] == "w1"
    assert [one[1] for one in calls if one[0] == "log"] == [1, 2]
