"""LeastMemory: what the fullest device of a candidate holds at least, from a few of its choices.

Most candidates of a large model need more than a device has: they are counted, and get no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.degrees import Degrees
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import block_parameters
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.group.value_size import StateSize, gradient_size, optimizer_size, parameter_size
from meshwright.stage.saved.saved import residual_bytes_per_token

Ints = NDArray[np.int64]
FORMATS = ("dtype", "master_dtype", "reduction_dtype")


class LeastMemory:
    """The mean over a pipeline of what its devices hold: their state, and of one microbatch the input to every block, divided
    along tp, which the fullest recompute keeps as well. Nothing that tensor parallelism leaves whole is counted twice.

    Args:
        formats: other fields of the plans, of which `FORMATS` are read.
        capacity_bytes: of a device.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, workload: Workload, formats: Mapping[str, Any], capacity_bytes: float
    ) -> None:  # fmt: skip
        self._model, self._length, self._capacity = model, workload.sequence_length, capacity_bytes
        chosen = {name: formats[name] for name in FORMATS if name in formats}
        plan = Plan.of(model, cluster, workload, dp=1, num_devices=1, **chosen)
        self._sizes = [_state_sizes(plan.changed(sharding=name)) for name in SHARDINGS]
        self._num_experts = sum(
            count * sum(each.num_elements for each in block_parameters(model, block) if each.is_expert)
            for block, count in model.block_kinds(0, model.num_layers)
        )
        self._kept_bytes = float(residual_bytes_per_token(model, plan.dtype)) * model.num_layers

    def allows(self, layout: Degrees, sizes: Ints, sharding: Ints) -> NDArray[np.bool_]:
        """May microbatches of these sizes, [S], fit with this state, rows of (sharding, its degree)? [S, rows]."""
        tokens = sizes * self._length / (layout.cp * layout.tp)
        state = np.array([self._state_bytes(layout, *row) for row in sharding.tolist()])
        held = tokens[:, None] * self._kept_bytes + state
        return np.asarray(held <= layout.pp * self._capacity)

    def _state_bytes(self, layout: Degrees, sharding: int, degree: int) -> float:
        """Of a whole pipeline. Gradients are not there before the first backward under ZeRO-3."""
        tp, ep, experts = layout.tp, layout.ep, self._num_experts
        shared = degree or layout.dp * layout.cp
        folded = layout.expert_tp * ep  # devices that share a layer's experts
        whole = (self._model.num_parameters - experts) / tp + experts / folded
        divided = (self._model.num_parameters - experts) / (tp * shared) + experts / max(folded, tp * shared)
        return sum(size.num_bytes * (divided if size.is_shared else whole) for size in self._sizes[sharding])


def _state_sizes(plan: Plan) -> tuple[StateSize, ...]:
    always = (parameter_size(plan), optimizer_size(plan))
    return always if plan.shared.divides_values else (*always, gradient_size(plan))
