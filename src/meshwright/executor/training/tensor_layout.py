"""How a training's tensors are divided and in which formats they are; the degrees are those of the program's axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.executor.state.group_state import Formats
from meshwright.executor.team.inner_team import Ranks, inner_teams
from meshwright.ir.program import Program
from meshwright.lowering.sharding.canonical import CANONICAL
from meshwright.specs.plan.plan import Plan
from meshwright.stage.mesh import collapsed_axes, shard_axes

TENSOR, SHARDS = "tp", "shards"  # labels of teams that exchange inside computes
HEAD_NORMS = (
    "query_norm",
    "key_norm",
)  # used for every head, so each device of a group has a part of the gradient
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class TensorLayout:
    """``tp``: length of that axis. ``shard_axes``: axes of the ranks that share one copy of what is sharded.
    ``gathers_parameters``: ZeRO-3; ``scatters_gradients``: ZeRO-2 and 3. ``sequence_parallel``: the residual stream is
    divided by tokens along tp. ``reduction_dtype``, ``master_dtype``: empty: the job's dtype. ``is_canonical``: gradients
    are added in one order whatever the layout.
    """

    tp: int = 1
    shard_axes: tuple[str, ...] = ()
    gathers_parameters: bool = False
    scatters_gradients: bool = False
    sequence_parallel: bool = False
    reduction_dtype: str = ""
    master_dtype: str = ""
    is_canonical: bool = False

    @staticmethod
    def of(plan: Plan) -> TensorLayout:
        """What a plan says. Raises PlanError where groups of devices do not nest."""
        lengths = {axis.name: axis.size for axis in collapsed_axes(plan)}
        shards = tuple(axis for axis in shard_axes(plan) if lengths.get(axis, 1) > 1)
        return TensorLayout(
            tp=plan.tp,
            shard_axes=shards,
            gathers_parameters=plan.shared.divides_values and bool(shards),
            scatters_gradients=plan.shared.divides_gradients and bool(shards),
            sequence_parallel=plan.sequence_parallel and plan.tp > 1,
            reduction_dtype=plan.gradient_dtype,
            master_dtype=plan.master_dtype or plan.dtype,
            is_canonical=plan.options_of(CANONICAL) is not None,
        )

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> TensorLayout:
        """Read what `asdict` wrote."""
        return TensorLayout(**{**fields, "shard_axes": tuple(fields["shard_axes"])})

    def formats(self, dtype: torch.dtype) -> Formats:
        """Of parameters, gradients and master copy, where parameters have `dtype`."""
        return Formats(dtype, DTYPES.get(self.reduction_dtype, dtype), DTYPES.get(self.master_dtype, dtype))

    def teams(self, program: Program) -> list[tuple[Ranks, str]]:
        """Process groups that computes of all ranks exchange in."""
        return [
            *inner_teams(program, (TENSOR,), TENSOR),
            *(inner_teams(program, self.shard_axes, SHARDS) if self.shard_axes else ()),
        ]
