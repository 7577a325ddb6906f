"""Whoever is told of every step: the metrics' file, TensorBoard, Weights & Biases, MLflow, and a function of the caller's."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshwright.api.trainings.metrics import MetricsFile, StepMetrics
from meshwright.specs.error import ExecutionError
from meshwright.specs.training.sinks import Sinks
from meshwright.specs.whole_file import whole_file

EXPERIMENT = "meshwright"  # of MLflow
IS_ADDRESS = ("://", "databricks", "file:")
# Its own words: https://docs.wandb.ai/guides/track/environment-variables
KEY, MODE = "WANDB_API_KEY", "WANDB_MODE"
ONLINE, OFFLINE = "online", "offline"
DATABASE = "mlflow.db"
MILLISECONDS = 1000
RUNS_FILE = (
    "sinks.json"  # in the folder of checkpoints: the run of every sink, for whoever goes on with the training
)

Listener = Callable[[StepMetrics], None]


class Sink(Protocol):
    """Takes the numbers of a step, by name."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Of a step, the first is 1; what is no number is left out."""

    def close(self) -> None:
        """All that was written is kept."""


@dataclass(frozen=True)
class KnownRuns:
    """Which runs a training has, kept where its checkpoints are. ``folder``: None: nobody will go on with it."""

    folder: Path | None = None
    is_resumed: bool = False

    def of(self, sink: str, where: str) -> str | None:
        """The number of the training's run, where it is gone on with and one was kept."""
        return self._kept().get(sink, {}).get(where) if self.is_resumed else None

    def keep(self, sink: str, where: str, run: str) -> None:
        """Write it down beside those that are there. Raises ExecutionError where nothing can be written."""
        if self.folder is None:
            return
        found = self._kept()
        found.setdefault(sink, {})[where] = run
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / RUNS_FILE) as file:
                file.write_text(json.dumps(found, indent=1), encoding="utf-8")
        except OSError as error:
            raise ExecutionError(f"{self.folder / RUNS_FILE} cannot be written: {error.strerror}") from None

    def _kept(self) -> dict[str, dict[str, str]]:
        """Of a file that is missing or damaged nothing: then the training has a run more, which is no reason to stop it."""
        if self.folder is None:
            return {}
        try:
            found = json.loads((self.folder / RUNS_FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {sink: dict(runs) for sink, runs in found.items() if isinstance(runs, dict)}


class WandB:
    """A run of Weights & Biases in a project."""

    def __init__(self, project: str, facts: Mapping[str, Any], runs: KnownRuns | None = None) -> None:
        """`facts`: of the training, shown beside its curves. `runs`: goes on with the one that is known.

        Raises ExecutionError where the package is missing.
        """
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "--wandb") from error
        mode = os.environ.get(MODE) or (ONLINE if os.environ.get(KEY) else OFFLINE)
        runs = runs or KnownRuns()
        known = runs.of("wandb", project)
        again = {} if known is None else {"id": known, "resume": "allow"}
        self._run: Any = wandb.init(project=project, mode=mode, config=dict(facts), **again)
        runs.keep("wandb", project, self._run.id)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """As `Sink`."""
        self._run.log(numbers(values), step=step)

    def close(self) -> None:
        """As `Sink`."""
        self._run.finish()


class MLflow:
    """A run of MLflow, in the experiment "meshwright" of a server or of a folder."""

    def __init__(self, where: str, facts: Mapping[str, Any], runs: KnownRuns | None = None) -> None:
        """`facts`: of the training, its parameters there. `runs`: goes on with the one that is known, whose parameters stay
        those of its beginning. Raises ExecutionError where the package is missing."""
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise _missing("mlflow", "--mlflow") from error
        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=address_of(where))
        runs = runs or KnownRuns()
        known = runs.of("mlflow", where)
        if known is None:
            self._run_id = self._begun(facts)
            runs.keep("mlflow", where, self._run_id)
        else:
            self._run_id = known
            self._client.update_run(known, "RUNNING")

    def _begun(self, facts: Mapping[str, Any]) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        run: str = self._client.create_run(number).info.run_id
        for name, fact in facts.items():
            self._client.log_param(run, name, fact)
        return run

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
    folder: Path | None = None,
) -> Iterator[Listener]:
    """A function that tells every step to all who want to know, while the block lasts.

    ``first_step``: what an interrupted training wrote of later ones is dropped from files, or hidden. ``folder``: of its
    checkpoints, where the runs of W&B and MLflow are known again.
    """
    with contextlib.ExitStack() as stack:
        listeners: list[Listener] = []
        if sinks.metrics is not None:
            file = MetricsFile(Path(sinks.metrics), first_step, is_resumed)
            stack.callback(file.close)
            listeners.append(file)
        for sink in _opened(sinks, facts, first_step, KnownRuns(folder, is_resumed)):
            stack.callback(sink.close)
            listeners.append(_listener(sink))
        if progress is not None:
            listeners.append(progress)

        def tell(one: StepMetrics) -> None:
            for listener in listeners:
                listener(one)

        yield tell


def _opened(sinks: Sinks, facts: Mapping[str, Any], first_step: int, runs: KnownRuns) -> Iterator[Sink]:
    """One after the other, so that each is closed where the next cannot be opened."""
    if sinks.tensorboard is not None:
        from meshwright.executor.training.tensorboard import TensorBoard

        yield TensorBoard(Path(sinks.tensorboard), first_step)
    if sinks.wandb is not None:
        yield WandB(sinks.wandb, facts, runs)
    if sinks.mlflow is not None:
        yield MLflow(sinks.mlflow, facts, runs)


def _listener(sink: Sink) -> Listener:
    return lambda one: sink.write(one.number + 1, one.to_dict())


def _missing(package: str, option: str) -> ExecutionError:
    return ExecutionError(
        f"{option} is asked for, and the package {package} is not installed",
        next=f"pip install 'meshwright[{package}]'",
    )
