"""The recorded routing trace that claims of placements are tried on, and what moves cost beside everything else."""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files

from meshwright.specs.routing.expert_placement import (
    ContiguousExperts,
    ExpertPlacement,
    GroupShape,
    PlacesExperts,
)
from meshwright.specs.routing.routing_file import read_routing
from meshwright.specs.routing.routing_trace import RoutingTrace

RECORDED = "standard_library_routing.npz"  # benchmarks/recorded_routing.py made it


@cache
def recorded() -> tuple[RoutingTrace, RoutingTrace]:
    """The first half of its documents, to which placements are fitted, and the other half."""
    with as_file(files(__package__) / RECORDED) as path:
        trace = read_routing(path)
    middle = trace.steps[len(trace.steps) // 2]
    return trace.of_steps(0, middle - 1), trace.of_steps(middle, trace.steps[-1])


def tried(
    algorithm: PlacesExperts, shape: GroupShape
) -> tuple[ExpertPlacement, ExpertPlacement, RoutingTrace]:
    """Its placement of the first documents, that of neighbouring experts, and the other documents."""
    fitted, others = recorded()
    return algorithm(fitted, shape), ContiguousExperts()(fitted, shape), others


def moves_saved(algorithm: PlacesExperts, shape: GroupShape) -> float:
    """Share of moves that no longer leave their device, on documents that were not fitted to."""
    placed, before, others = tried(algorithm, shape)
    return 1 - placed.moved_share(others) / before.moved_share(others)
