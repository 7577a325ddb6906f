"""Weights & Biases and MLflow: what they are called with, where their packages are there or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.sink_calls import FACTS, Calls, calls

from meshwright.api.trainings.sink import DATABASE, RUNS_FILE, MLflow, WandB, address_of, told
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.sinks import Sinks

__all__ = ["calls"]


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_wandb_is_offline_where_nobody_says_otherwise(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], mode: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    sink = WandB("mine", FACTS)
    sink.write(3, {"loss": 2.5, "drift": {"a": 1}, "mfu": None, "is": True})
    sink.close()
    assert calls == [
        ("init", {"project": "mine", "mode": mode, "config": FACTS}),
        ("log", 3, {"loss": 2.5}),
        ("finish",),
    ]


def test_mlflow_has_a_run_with_the_facts_and_a_batch_a_step(calls: Calls) -> None:
    sink = MLflow("http://there:5000", FACTS)
    sink.write(3, {"loss": 2.5, "tokens": 8, "left_s": None})
    sink.close()
    assert calls == [
        ("client", "http://there:5000"),
        ("get_experiment_by_name", "meshwright"),
        ("create_experiment", "meshwright"),
        ("create_run", "7"),
        ("log_param", "r1", "model", "small"),
        ("log_param", "r1", "learning_rate", 0.1),
        ("log_batch", "r1", [("loss", 2.5, 3), ("tokens", 8.0, 3)]),
        ("set_terminated", "r1"),
    ]


def test_a_folder_of_mlflow_is_a_database_in_it(tmp_path: Path) -> None:
    assert address_of(str(tmp_path / "runs")) == f"sqlite:///{tmp_path}/runs/{DATABASE}"
    assert (tmp_path / "runs").is_dir()
    for address in ("http://a:1", "sqlite:///x.db", "databricks", "file:/x"):
        assert address_of(address) == address


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_before_a_step(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(ExecutionError, match=rf"--{package} is asked for.*meshwright\[{package}\]"),
        told(Sinks(**{package: "mine"}), FACTS, 0, False, None),
    ):
        pytest.fail("a step was told")


def test_what_was_opened_is_closed_where_the_next_cannot_be(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(ExecutionError, match="--mlflow"),
        told(Sinks(wandb="mine", mlflow="there"), FACTS, 0, False, None),
    ):
        pytest.fail("a step was told")
    assert calls[-1] == ("finish",)


def both(folder: Path | None, is_resumed: bool) -> None:
    with told(Sinks(wandb="mine", mlflow="http://there:5000"), FACTS, 0, is_resumed, None, folder):
        pass


def test_a_training_that_goes_on_goes_on_in_its_runs(calls: Calls, tmp_path: Path) -> None:
    """In the runs that its folder knows; of another project, or begun anew, it has runs of its own."""
    both(tmp_path / "kept", False)
    calls.clear()
    both(tmp_path / "kept", True)
    assert calls[0][1] == {
        "project": "mine",
        "mode": "offline",
        "config": FACTS,
        "id": "w1",
        "resume": "allow",
    }
    names = [one[0] for one in calls]
    assert ("update_run", "r1", "RUNNING") in calls and "create_run" not in names and "log_param" not in names
    for folder, is_resumed in ((tmp_path / "kept", False), (tmp_path / "other", True), (None, True)):
        calls.clear()
        both(folder, is_resumed)
        assert "id" not in calls[0][1] and "create_run" in [one[0] for one in calls]


@pytest.mark.parametrize("text", ["", "[]", '{"wandb": 3, "mlflow": {}}'])
def test_a_damaged_file_of_runs_begins_new_ones(calls: Calls, tmp_path: Path, text: str) -> None:
    (tmp_path / RUNS_FILE).write_text(text)
    both(tmp_path, True)
    assert "id" not in calls[0][1] and "create_run" in [one[0] for one in calls]
    calls.clear()
    both(tmp_path, True)
    assert calls[0][1]["id"] == "w1"
