"""What a checkpoint asks of the training that would go on from it."""

from __future__ import annotations

from typing import Protocol

from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.specs.model.model import ModelSpec


class ResumedTraining(Protocol):
    """A training that has not begun. ``initial``: the folder its first values come from; empty: drawn by ``seed``."""

    @property
    def model(self) -> ModelSpec: ...
    @property
    def optimizer(self) -> OptimizerConfig: ...
    @property
    def seed(self) -> int: ...
    @property
    def initial(self) -> str: ...
    @property
    def first_step(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...

    def data_digest(self) -> str:
        """What tells its data from others; "" where they are random."""
