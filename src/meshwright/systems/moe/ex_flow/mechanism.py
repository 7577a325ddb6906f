"""ExFlow's placement: experts that follow each other stand on one device, nodes first, then the devices of each.

And what a layer sends with tokens that come home behind their expert, or stay where it is."""

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
    optimum,
    staged,
)
from meshwright.systems.moe.assignment_program import solved


@dataclass(frozen=True)
class ExFlow:
    """Experts whose tokens follow each other on one device, as many on each (Yao et al. 2024, arXiv 2401.08383).

    Args:
        restarts: starts of alternating assignment.
        load_weight: by how much unevenness of devices' loads counts beside the share of moves that stay.
        exact: the optimum by dynamic programming, where a layer has few placements (8 experts on 4 devices).
        program_s: seconds for the paper's integer program, in place of alternating assignment; 0: no program.
        seed: draws the starts.
    """

    restarts: int = option(RESTARTS, "Starts of alternating assignment.", least=1)
    load_weight: float = option(
        0.0, "How much uneven loads of devices count beside moves that stay.", least=0
    )
    exact: bool = option(False, "The optimum, where a layer has few placements: 8 experts on 4 devices.")
    program_s: float = option(0.0, "Seconds for the paper's integer program instead; 0: none.", least=0)
    seed: int = option(0, "Draws the starts.", least=0)

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """Raises SpecError where devices do not divide experts, or the program ends with nothing."""
        check_divided(trace, shape)
        devices = staged(
            PlacementObjective.of(trace, shape.num_devices, self.load_weight), shape, self._placed
        )
        return of_devices(devices, shape, trace.layers)

    def _placed(self, objective: PlacementObjective) -> Numbers:
        if objective.num_devices == 1:
            return np.zeros(objective.loads.shape, np.int64)
        if self.exact:
            return optimum(objective)
        if self.program_s > 0:
            return solved(objective.moves, objective.num_devices, self.program_s).devices
        return alternating(objective, self.restarts, self.seed)


def sent_numbers(hidden: int, context: int, num_devices: int, moved: float, all_to_alls: int) -> float:
    """Numbers that a token sends in a layer of a decoding step, one expert a token.

    Args:
        hidden: of the token.
        context: of its keys and values, 2 D of one head of D.
        moved: share of tokens whose expert is on another device: than home with two all-to-alls, (G - 1) / G by chance; with
            one than their last expert.
        all_to_alls: 2 (there and home), or 1, and keys and values to all other devices.
    """
    return all_to_alls * moved * hidden + (num_devices - 1) * context * (all_to_alls == 1)
