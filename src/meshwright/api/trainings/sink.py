"""Whoever is told of every step: the metrics' file, TensorBoard, Weights & Biases, MLflow, and a function of the caller's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from meshwright.api.trainings.metrics import MetricsFile, StepMetrics
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.sinks import Sinks

EXPERIMENT = "meshwright"  # of MLflow
IS_ADDRESS = ("://", "databricks", "file:")
# Its own words: https://docs.wandb.ai/guides/track/environment-variables
KEY, MODE = "WANDB_API_KEY", "WANDB_MODE"
ONLINE, OFFLINE = "online", "offline"
DATABASE = "mlflow.db"
MILLISECONDS = 1000

Listener = Callable[[StepMetrics], None]


class Sink(Protocol):
    """Takes the numbers of a step, by name."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Of a step, the first is 1; what is no number is left out."""

    def close(self) -> None:
        """All that was written is kept."""


class WandB:
    """A run of Weights & Biases in a project."""

    def __init__(self, project: str, facts: Mapping[str, Any]) -> None:
        """`facts`: of the training, shown beside its curves. Raises ExecutionError where the package is missing."""
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "--wandb") from error
        mode = os.environ.get(MODE) or (ONLINE if os.environ.get(KEY) else OFFLINE)
        self._run: Any = wandb.init(project=project, mode=mode, config=dict(facts))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """As `Sink`."""
        self._run.log(numbers(values), step=step)

    def close(self) -> None:
        """As `Sink`."""
        self._run.finish()


class MLflow:
    """A run of MLflow, in the experiment "meshwright" of a server or of a folder."""

    def __init__(self, where: str, facts: Mapping[str, Any]) -> None:
        """`facts`: of the training, its parameters there. Raises ExecutionError where the package is missing."""
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise _missing("mlflow", "--mlflow") from error
        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=address_of(where))
        found = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        self._run_id = self._client.create_run(number).info.run_id
        for name, fact in facts.items():
            self._client.log_param(self._run_id, name, fact)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """As `Sink`."""
        now_ms = int(time.time() * MILLISECONDS)
        rows = [self._metric(name, float(value), now_ms, step) for name, value in numbers(values).items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        """As `Sink`."""
        self._client.set_terminated(self._run_id)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those among the values that are numbers."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def address_of(where: str) -> str:
    """A server's address as it is; a folder, made where it is not there, as that of a database in it."""
    if any(mark in where for mark in IS_ADDRESS[:1]) or where.startswith(IS_ADDRESS[1:]):
        return where
    folder = Path(where).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(folder / DATABASE).as_posix()}"


@contextlib.contextmanager
def told(
    sinks: Sinks,
    facts: Mapping[str, Any],
    first_step: int,
    is_resumed: bool,
    progress: Listener | None,
) -> Iterator[Listener]:
    """A function that tells every step to all who want to know, while the block lasts.

    ``first_step``: what an interrupted training wrote of later ones is dropped from files, or hidden.
    """
    with contextlib.ExitStack() as stack:
        listeners: list[Listener] = []
        if sinks.metrics is not None:
            file = MetricsFile(Path(sinks.metrics), first_step, is_resumed)
            stack.callback(file.close)
            listeners.append(file)
        for sink in _opened(sinks, facts, first_step):
            stack.callback(sink.close)
            listeners.append(_listener(sink))
        if progress is not None:
            listeners.append(progress)

        def tell(one: StepMetrics) -> None:
            for listener in listeners:
                listener(one)

        yield tell


def _opened(sinks: Sinks, facts: Mapping[str, Any], first_step: int) -> Iterator[Sink]:
    """One after the other, so that each is closed where the next cannot be opened."""
    if sinks.tensorboard is not None:
        from meshwright.executor.training.tensorboard import TensorBoard

        yield TensorBoard(Path(sinks.tensorboard), first_step)
    if sinks.wandb is not None:
        yield WandB(sinks.wandb, facts)
    if sinks.mlflow is not None:
        yield MLflow(sinks.mlflow, facts)


def _listener(sink: Sink) -> Listener:
    return lambda one: sink.write(one.number + 1, one.to_dict())


def _missing(package: str, option: str) -> ExecutionError:
    return ExecutionError(
        f"{option} is asked for, and the package {package} is not installed",
        next=f"pip install 'meshwright[{package}]'",
    )
