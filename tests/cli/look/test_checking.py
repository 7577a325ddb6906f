"""`check`: what is whole is accepted, what is not is refused with its reason, and what `train` would refuse is said."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Runner, small_plan

from meshwright.executor.capability import EXECUTED_DTYPES
from meshwright.executor.job.job import DTYPES


def test_check_accepts_what_is_whole(run: Runner, plan_file: Path) -> None:
    data = run("check", plan_file, "--json").data
    assert data["accepted"] and data["legal"] and data["deadlock_free"] and data["gradients_whole"]
    assert data["fits"] and 0 < max(data["peak_bytes"]) < data["capacity_bytes"]


def test_check_says_which_legal_plan_train_would_refuse(run: Runner, tmp_path: Path) -> None:
    plan = small_plan()
    for choices, words in (
        ({"attention": "unfused"}, "attention=unfused"),
        ({"dtype": "float16"}, "dtype=float16"),
    ):
        path = tmp_path / "other.toml"
        plan.changed(**choices).save(path)
        checked, refused = run("check", path, "--json"), run("train", path, "--iterations", 1)
        assert checked.code == 0 and words in checked.data["train_refusal"]
        assert refused.code == 2 and words in refused.stderr
    plan.save(path)
    assert run("check", path, "--json").data["train_refusal"] is None
    assert set(EXECUTED_DTYPES) == set(DTYPES)


def test_check_refuses_with_the_grid(run: Runner, schedule_file: Path) -> None:
    ran = run("check", "--schedule", f"{schedule_file}:backwards", "-p", 2, "-m", 2)
    assert ran.code == 3 and "<-- here" in ran.stdout and "dev1" in ran.stdout
    data = run("check", "--schedule", f"{schedule_file}:backwards", "--json").data
    assert data["legal"] is False and data["accepted"] is False and data["error"]["kind"] == "ScheduleError"


def test_check_refuses_a_missing_backward(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "lost.csv"
    path.write_text("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n")
    ran = run("check", path)
    assert ran.code == 3 and "Traceback" not in ran.stderr


def test_check_refuses_what_does_not_fit(run: Runner, plan_file: Path) -> None:
    ran = run("check", plan_file, "--memory", "100kB")
    assert ran.code == 3 and "largest holders" in ran.stdout and "optimizer state" in ran.stdout


def test_a_corrupt_plan_names_the_file(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("schema = [\n")
    ran = run("check", path)
    assert ran.code == 2 and "plan.toml" in ran.stderr
