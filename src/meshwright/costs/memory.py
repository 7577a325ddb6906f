"""Bytes of the values of a stage: what is there all the time, and what each microbatch in flight adds.

The same numbers size the values of a program (the ledger) and answer "does it fit" before there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.saved.saved import (
    boundary_bytes_per_token,
    num_stage_parameters,
    pending_bytes_per_token,
    saved_bytes_per_token,
)

ADAMW_STATES = 2  # first and second moment, each as large as the parameters


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one stage on one device.

    Attributes:
        parameter_bytes, gradient_bytes, optimizer_bytes: there all the time (gradients from the first backward).
        saved_bytes: of one microbatch from its F to the end of its backward (W where split).
        recomputed_bytes: of one microbatch from its R to its backward; 0 without recompute.
        pending_bytes: of one microbatch from I to W where the backward is split.
        boundary_bytes: one activation, or one gradient, between two stages.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_bytes: int
    recomputed_bytes: int
    pending_bytes: int
    boundary_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """What is there all the time."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def peak_bytes(self, num_in_flight: int, num_pending: int = 0) -> int:
        """Peak with `num_in_flight` microbatches between F and their backward, `num_pending` between I and W.

        One microbatch at a time is recomputed; one received activation and one gradient wait beside.
        """
        kept = num_in_flight * self.saved_bytes + num_pending * self.pending_bytes
        return self.fixed_bytes + kept + self.recomputed_bytes + 2 * self.boundary_bytes


def stage_memory(
    model: ModelSpec,
    layers: StageLayers,
    num_tokens: int,
    *,
    dtype: str = "float32",
    recompute: str = "none",
    optimizer_states: int = ADAMW_STATES,
) -> StageMemory:
    """Bytes of a stage for microbatches of `num_tokens` tokens, all numbers in `dtype`.

    `recompute` is "none" or "full"; `optimizer_states` counts arrays as large as the parameters.
    """
    parameters = num_stage_parameters(model, layers) * dtype_bytes(dtype)
    kept = num_tokens * saved_bytes_per_token(model, layers, dtype, "none")
    saved = num_tokens * saved_bytes_per_token(model, layers, dtype, recompute)
    return StageMemory(
        parameter_bytes=parameters,
        gradient_bytes=parameters,
        optimizer_bytes=optimizer_states * parameters,
        saved_bytes=saved,
        recomputed_bytes=kept if recompute == "full" else 0,
        pending_bytes=num_tokens * pending_bytes_per_token(model, layers, dtype),
        boundary_bytes=num_tokens * boundary_bytes_per_token(model, dtype),
    )
