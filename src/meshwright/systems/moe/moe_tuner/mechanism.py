"""MoETuner's placement: experts in clusters of even load, then clusters on devices so that tokens stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.specs.option import option
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape, check_divided, of_devices
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.systems.moe.alternating_assignment import (
    RESTARTS,
    Numbers,
    PlacementObjective,
    alternating,
    staged,
)
from meshwright.systems.moe.assignment_program import balanced_clusters, solved


@dataclass(frozen=True)
class MoeTuner:
    """Clusters of even load in each layer, put on devices so that tokens stay (Go and Mahajan 2025, arXiv 2502.06643).

    Args:
        cluster_s: seconds for the first program, of each layer.
        program_s: seconds for the second program; 0: alternating assignment in its place.
        restarts: starts of alternating assignment.
    """

    cluster_s: float = option(5.0, "Seconds for the program of even clusters, of each layer.", above=0)
    program_s: float = option(
        0.0, "Seconds for the program of clusters on devices; 0: alternating assignment.", least=0
    )
    restarts: int = option(RESTARTS, "Starts of alternating assignment.", least=1)

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """Raises SpecError where devices do not divide experts, or a program ends with nothing."""
        check_divided(trace, shape)
        num_devices, loads = shape.num_devices, trace.counts.astype(float)
        clusters = np.stack([balanced_clusters(row, num_devices, self.cluster_s) for row in loads])
        devices = staged(clustered(PlacementObjective.of(trace, num_devices), clusters), shape, self._placed)
        return of_devices(np.take_along_axis(devices, clusters, 1), shape, trace.layers)

    def _placed(self, objective: PlacementObjective) -> Numbers:
        if objective.num_devices == 1:
            return np.zeros(objective.loads.shape, np.int64)
        if self.program_s > 0:
            return solved(objective.moves, objective.num_devices, self.program_s).devices
        return alternating(objective, self.restarts, seed=0)


def clustered(objective: PlacementObjective, clusters: Numbers) -> PlacementObjective:
    """Moves and loads of clusters [L, E] in place of experts: as many clusters as devices."""
    one = np.eye(objective.num_devices)[clusters]  # [L, E, G]
    moves = np.einsum("lac,lab,lbd->lcd", one[:-1], objective.moves, one[1:])
    return objective._replace(moves=moves, loads=np.einsum("le,leg->lg", objective.loads, one))
