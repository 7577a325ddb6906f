"""Where experts stand, by every algorithm that is asked for, fitted to a trace's first tokens and tried on the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright import catalog
from meshwright.specs.error import SpecError
from meshwright.specs.routing.affinity import affinities
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape
from meshwright.specs.routing.routing_file import read_routing
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.slot import TRUST

PathLike = str | os.PathLike[str]
SLOT = "expert_placement"
FITTED_SHARE = 0.5  # of a trace's tokens: half of them show what the other half does


@dataclass(frozen=True)
class PlacedExperts:
    """One algorithm's placement, and what it does on the tokens that it was fitted to, and on others.

    Shares of moves from a layer's expert to the next one's that leave the device, or the node; None where experts
    have copies. ``moved_by_loads``: of experts that know nothing of the last layer's, on devices with the same loads.
    ``imbalance``: rows of the busiest device over the mean, mean of the layers, on the others.
    """

    name: str
    placement: ExpertPlacement
    moved: float | None
    moved_fitted: float | None
    moved_nodes: float | None
    moved_by_loads: float | None
    imbalance: float


@dataclass(frozen=True)
class PlacementTrial:
    """A trace in two parts, and the placements of it in the order in which they were asked for."""

    fitted: RoutingTrace
    others: RoutingTrace
    shape: GroupShape
    rows: tuple[PlacedExperts, ...]

    @property
    def affinity_bits(self) -> float:
        """Mean affinity of neighbouring layers, of the tokens that were not fitted to."""
        return float(np.mean([each.bits for each in affinities(self.others)] or [0.0]))


class StepsTrial(NamedTuple):
    """Placements of the tokens of some steps, from the first to the last of them."""

    first: int
    last: int
    trial: PlacementTrial


def place_experts(
    routing: PathLike | RoutingTrace,
    devices: int,
    nodes: int = 1,
    by: Sequence[str] = (),
    fitted: float = FITTED_SHARE,
) -> PlacementTrial:
    """Place experts on the devices of an expert-parallel group.

    Args:
        routing: a trace, or its file.
        devices, nodes: of the group; as many devices on each node.
        by: names of the slot `expert_placement`, with options; none: all of them.
        fitted: share of the tokens, the first ones, that placements are fitted to; they are tried on the rest.

    Raises SpecError where they cannot stand so, PlanError for a name that nobody knows.
    """
    trace = routing if isinstance(routing, RoutingTrace) else read_routing(routing)
    if not 0 < fitted < 1:
        raise SpecError(f"placements fitted to {fitted:g} of the tokens", allowed="a share between 0 and 1")
    first, others = trace.parted(min(trace.num_tokens - 1, max(1, round(fitted * trace.num_tokens))))
    shape = GroupShape(devices, nodes)
    rows = []
    for name in by or catalog.slot_names(SLOT):
        TRUST.allow(name)
        rows.append(_tried(name, catalog.filler(SLOT, name)(first, shape), first, others, shape))
    return PlacementTrial(first, others, shape, tuple(rows))


def place_over_steps(
    routing: PathLike | RoutingTrace,
    devices: int,
    nodes: int = 1,
    by: Sequence[str] = (),
    fitted: float = FITTED_SHARE,
    together: int = 1,
) -> tuple[StepsTrial, ...]:
    """`place_experts` of every so many steps of a trace by themselves: how affinity grows while a model is trained.

    Args:
        together: neighbouring steps, of those recorded, that are placed and tried together; the last ones may be fewer.

    Raises SpecError where there are not as many, and what `place_experts` raises.
    """
    trace = routing if isinstance(routing, RoutingTrace) else read_routing(routing)
    if not 1 <= together <= len(trace.steps):
        raise SpecError(
            f"{together} steps together, of a trace of {len(trace.steps)}",
            allowed=f"from 1 to {len(trace.steps)}",
            next="record more of them: train --record-routing FILE --routing-steps N --routing-every M",
        )
    found = []
    for at in range(0, len(trace.steps), together):
        first, last = trace.steps[at], trace.steps[at : at + together][-1]
        trial = place_experts(trace.of_steps(first, last), devices, nodes, by, fitted)
        found.append(StepsTrial(first, last, trial))
    return tuple(found)


def _tried(
    name: str, made: ExpertPlacement, first: RoutingTrace, others: RoutingTrace, shape: GroupShape
) -> PlacedExperts:
    imbalance = float(made.imbalances(others).mean())
    if made.has_copies:
        return PlacedExperts(Path(name).name, made, None, None, None, None, imbalance)
    moved, fitted = (made.moved_share(each) for each in (others, first))
    nodes, by_loads = made.moved_share(others, shape.num_nodes), made.moved_by_loads(others)
    return PlacedExperts(Path(name).name, made, moved, fitted, nodes, by_loads, imbalance)
