"""Modules in the places of `wandb` and `mlflow` that write down what they are called with."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Calls = list[tuple[Any, ...]]
FACTS = {"model": "small", "learning_rate": 0.1}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the two packages were called with: modules that write it down stand in their places."""
    made: Calls = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            made.append(("client", tracking_uri))

        def __getattr__(self, name: str) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                made.append((name, *given, *named.values()))
                run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
                return {"get_experiment_by_name": None, "create_experiment": "7", "create_run": run}.get(name)

            return call

    class Run:
        id = "w1"

        def log(self, values: Any, step: int) -> None:
            made.append(("log", step, values))

        def finish(self) -> None:
            made.append(("finish",))

    def init(**given: Any) -> Run:
        made.append(("init", given))
        return Run()

    wandb, mlflow, entities = ModuleType("wandb"), ModuleType("mlflow"), ModuleType("mlflow.entities")
    wandb.__dict__["init"], mlflow.__dict__["MlflowClient"] = init, Client
    entities.__dict__["Metric"] = lambda key, value, timestamp, step: (key, value, step)
    for module in (wandb, mlflow, entities):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return made
