"""What is seen of a training while it runs: one `StepMetrics` a step, and the file of JSON lines that keeps them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.trainings.drift import Drift, DriftWatch
from meshwright.api.trainings.held_file import hold
from meshwright.specs.error import SpecError
from meshwright.specs.whole_file import whole_file

if TYPE_CHECKING:
    from meshwright.executor.job.gather import Iteration
    from meshwright.specs.plan.utilisation import StepFlops
    from meshwright.specs.training.learning_rate import LearningRate

SMOOTHING = 0.1  # weight of a new step in the mean that the time left is made of


@dataclass(frozen=True)
class StepMetrics:
    """One finished step.

    ``number``: of the step, the very first is 0. ``tokens``: of the step; ``total_tokens``: since the very first.
    ``flops_per_s_per_device``: of the model, as of `Utilisation`; ``mfu``: None where no peak is known. ``left_s``: None
    where nothing says the end. ``held_out_loss``: where one was found after it. Losses are nats a token;
    ``gradient_norm`` is before clipping. ``drift``: what is to be told about predicted and measured. ``groups``:
    how many groups of how many ranks its sequences were in, as of `GroupedBatch.words`. ``router_loss``: what the losses of
    routers add, which is not in ``loss``. ``num_dropped``: choices of experts, over all layers, beyond their capacity.
    """

    number: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    total_tokens: int
    seconds: float
    predicted_s: float
    tokens_per_s: float
    flops_per_s_per_device: float
    mfu: float | None
    left_s: float | None
    held_out_loss: float | None = None
    num_undone: int = 0
    drift: Drift | None = None
    groups: str = ""
    router_loss: float = 0.0
    num_dropped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As a line of the metrics file has it: ``step`` counts from 1, ``measured_s`` beside ``predicted_s``."""
        fields = asdict(self)
        row = {"step": fields.pop("number") + 1, "measured_s": fields.pop("seconds"), **fields}
        return {name: value for name, value in row.items() if name not in OPTIONAL or value}


OPTIONAL = ("held_out_loss", "num_undone", "drift", "groups", "router_loss", "num_dropped")


@dataclass(frozen=True)
class Meter:
    """Makes `StepMetrics` of what the executor says about iterations.

    ``flops``: of a step of ``flops_tokens`` on a device (0: every step has as many).
    ``num_steps``: of the whole training; ``duration_s``: of this run; None: no such end. ``first_tokens``: consumed before
    ``first_step``; None: as many as so many steps take.
    """

    rates: LearningRate
    predicted_s: float
    flops: StepFlops
    first_step: int = 0
    num_steps: int | None = None
    duration_s: float | None = None
    first_tokens: int | None = None
    drift: DriftWatch | None = None
    flops_tokens: int = 0

    def follow(self, tell: Callable[[StepMetrics], None]) -> Callable[[Iteration], None]:
        """A function for the executor that hands every finished iteration on as metrics."""
        total, mean_s, elapsed_s = 0, math.nan, 0.0

        def note(iteration: Iteration) -> None:
            nonlocal total, mean_s, elapsed_s
            total, elapsed_s = total + iteration.tokens, elapsed_s + iteration.seconds + iteration.paused_s
            if iteration.number == 0:
                mean_s = self.predicted_s  # the first one includes the start of the job
            elif iteration.number == 1:
                mean_s = iteration.seconds
            else:
                mean_s += SMOOTHING * (iteration.seconds - mean_s)
            before = self.first_step * iteration.tokens if self.first_tokens is None else self.first_tokens
            tell(self._metrics(iteration, before + total, self._left_s(iteration, mean_s, elapsed_s)))

        return note

    def _metrics(self, iteration: Iteration, total: int, left_s: float | None) -> StepMetrics:
        number = self.first_step + iteration.number
        predicted_s = self.predicted_s if iteration.predicted_s is None else iteration.predicted_s
        rate = iteration.tokens / iteration.seconds if iteration.seconds > 0 else 0.0
        share = iteration.tokens / self.flops_tokens if self.flops_tokens and iteration.tokens else 1.0
        used = self.flops.used(iteration.seconds / share)
        return StepMetrics(
            number, iteration.loss, self.rates.at(number), iteration.gradient_norm, iteration.tokens, total,
            iteration.seconds, predicted_s, rate, used.flops_per_s, used.mfu, left_s,
            iteration.held_out_loss, iteration.num_undone,
            None if self.drift is None else self.drift.see(iteration),
            "" if iteration.groups is None else iteration.groups.words,
            iteration.router_loss, iteration.num_dropped,
        )  # fmt: skip

    def _left_s(self, iteration: Iteration, mean_s: float, elapsed_s: float) -> float | None:
        """The first end to come: of the steps, or of the clock."""
        ends = [] if self.duration_s is None else [self.duration_s - elapsed_s]
        if self.num_steps is not None:
            ends.append((self.num_steps - self.first_step - iteration.number - 1) * mean_s)
        return max(0.0, min(ends)) if ends else None


class MetricsFile:
    """A file of JSON lines, one object a step, written as the steps finish; held until the training ends (`is_held`)."""

    def __init__(self, path: Path, first_step: int = 0, resumes: bool = False) -> None:
        """`resumes`: the file is of the training that goes on at `first_step`: what it did behind that is dropped.

        Raises SpecError where the file cannot be written, or holds another training.
        """
        if not resumes and path.exists() and path.stat().st_size:
            raise SpecError(
                f"{path} is there already", allowed="a new file, or --resume to go on with a training's own"
            )
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            with whole_file(path) as fresh:
                fresh.write_text("".join(_before(lines, first_step, path)), encoding="utf-8")
            self._file = path.open("a", encoding="utf-8", buffering=1)
            hold(self._file)
        except OSError as error:
            raise SpecError(
                f"{path} cannot be written: {error.strerror}", allowed="a path in a folder that is there"
            ) from error

    def __call__(self, metrics: StepMetrics) -> None:
        """One line more."""
        self._file.write(json.dumps(_finite(metrics.to_dict()), allow_nan=False) + "\n")

    def close(self) -> None:
        """The last line is on its way to the disk."""
        self._file.close()


def _before(lines: Sequence[str], first_step: int, path: Path) -> list[str]:
    """Lines of the steps before `first_step`. A last line that was cut off by a crash is none."""
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            if int(json.loads(line)["step"]) <= first_step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and not line.endswith("\n"):
                break
            raise SpecError(
                f"line {number} of {path} is no step's metrics", allowed="a file that --metrics wrote"
            ) from None
    return kept


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """A number that is none becomes null: JSON has no word for it."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
