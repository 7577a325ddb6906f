"""Hecate as a placement: owners by load, as many experts on each device in every layer, and copies of the busiest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape, check_divided, of_devices
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.systems.moe.hecate.mechanism import Copies, Loads, materialized, sharded


@dataclass(frozen=True)
class Hecate:
    """Owners by load, on the least loaded node and device, and copies of busy experts (Qing et al. 2025, arXiv 2502.02581).

    Args:
        overlap: busiest experts of a layer that are copied; 0: nothing is, and `train` reads the file.
        memory: copies that fit on a device; 0: as many as are copied.
    """

    overlap: int = option(0, "Busiest experts of a layer that are copied; 0: owners only.", least=0)
    memory: int = option(0, "Copies that fit on a device; 0: as many as are copied.", least=0)

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """Raises SpecError where devices do not divide experts, or a device would have more than all of them."""
        check_divided(trace, shape)
        memory, own = min(self.memory or self.overlap, self.overlap), trace.num_experts // shape.num_devices
        if own + memory > trace.num_experts or self.overlap > trace.num_experts:
            raise SpecError(
                f"{memory} copies on a device that owns {own} of {trace.num_experts} experts; {self.overlap} are copied",
                allowed=f"up to {trace.num_experts - own} copies, of up to {trace.num_experts} experts",
            )  # fmt: skip
        nodes = [device * shape.num_nodes // shape.num_devices for device in range(shape.num_devices)]
        loads_LX = trace.counts.astype(np.float64)
        owners_LX = np.concatenate([sharded(loads[None], self.overlap, nodes) for loads in loads_LX])
        if not memory:
            return of_devices(owners_LX, shape, trace.layers)
        rows = []
        for loads, owners in zip(loads_LX, owners_LX, strict=True):
            copies_XD = materialized(loads, owners, self.overlap, memory, nodes)
            fill(copies_XD, loads, own + memory)
            rows.append(np.concatenate([np.flatnonzero(has_X) for has_X in copies_XD.T]))
        return ExpertPlacement(np.array(rows), shape.num_devices, trace.layers)


def fill(copies_XD: Copies, loads_X: Loads, num_slots: int) -> None:
    """Take the places that are left on some devices (owners of what all others copy), so that all have as many: on the least
    loaded device first, the expert that leaves the busiest device the least, copies sharing their expert's rows evenly."""
    while (has := copies_XD.sum(0)).min() < num_slots:
        each_X = loads_X / copies_XD.sum(1)
        loads_D = each_X @ copies_XD
        device = min(np.flatnonzero(has < num_slots), key=lambda d: (loads_D[d], d))
        shared_X = loads_X / (copies_XD.sum(1) + 1)
        with_XD = loads_D - (each_X - shared_X)[:, None] * copies_XD
        with_XD[:, device] += shared_X
        busiest_X = np.where(copies_XD[:, device], np.inf, with_XD.max(1))
        copies_XD[np.lexsort((shared_X, busiest_X))[0], device] = True
