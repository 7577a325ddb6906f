"""Objective: what a search ranks by: the step, the money, the energy, or the memory."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.advice.running_cost import power_w, price_per_hour_usd
from meshwright.prediction.predicted import Predicted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, UnknownNameError

DIGITS = 9  # of seconds; what differs only by the rounding of sums is equally fast


class Objective(StrEnum):
    """What is to be least.

    On one cluster a step's cost and energy are its seconds times what all devices cost and draw: they rank as time does.
    Memory is the peak of the fullest device, whatever the step: the plans that leave the most room.
    """

    TIME = "time"
    COST = "cost"
    ENERGY = "energy"
    MEMORY = "memory"


def objective_named(name: str) -> Objective:
    """The objective of that name. Raises UnknownNameError."""
    if name not in list(Objective):
        raise UnknownNameError("objective", name, list(Objective))
    return Objective(name)


def check_rates(objective: Objective, cluster: ClusterSpec) -> None:
    """Raises PlanError where nobody said the price, or the power, that the objective needs."""
    missing = {
        Objective.COST: ("price", price_per_hour_usd, "--price 2.5 (USD for a device and hour)"),
        Objective.ENERGY: ("power", power_w, "--power 700W"),
    }.get(objective)
    if missing is not None and missing[1](cluster) is None:
        raise PlanError(
            f"--objective {objective}: nobody said the {missing[0]} of {cluster.devices[0].name}",
            allowed=f"devices with a {missing[0]}",
            next=f"give {missing[2]}",
        )


def rank(
    objective: Objective, step_s: NDArray[np.float64], peak_bytes: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Numbers of candidates, the best first; equally good ones in their order.

    Args:
        step_s: seconds of a step, [n].
        peak_bytes: of the fullest device, [n].
    """
    if not len(step_s):
        return np.empty(0, dtype=np.int64)
    rounded = np.round(step_s / step_s.min(), DIGITS)
    # a stable sort keeps equally good ones in their order
    keys = (rounded, np.round(peak_bytes)) if objective is Objective.MEMORY else (rounded,)
    return np.lexsort(keys).astype(np.int64)


def sort_key(objective: Objective, planned: Predicted) -> tuple[float, float, str]:
    """By what simulated plans are sorted, the best first."""
    step = float(f"{planned.step.value:.{DIGITS}g}")
    if objective is Objective.MEMORY:
        return round(planned.peak_bytes), step, planned.description
    return step, planned.peak_bytes, planned.description
