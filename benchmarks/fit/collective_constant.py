"""The constants of collectives that are fitted, with their physical ranges, and the fit itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

Vector = npt.NDArray[np.float64]

SOFT_SCALE = 0.1  # residuals above 10 % weigh less and less
PRIOR_WEIGHT = (
    0.02  # a constant e times its first guess costs like one row that is 2 % off: holds what no row tells
)
EDGE = 0.01  # a constant within 1 % of its range's ends, in logs, is at its edge
STARTS = (1.0, 0.5, 2.0)  # factors on the first guess


class Constant(NamedTuple):
    """One fitted number: where it starts, its physical range, and its unit; ranges are reasons, not tuning."""

    name: str
    guess: float
    low: float
    high: float
    unit: str
    meaning: str


NODE_CONSTANTS = (
    Constant(
        "ring_low.start", 5e-6, 1e-6, 2e-5, "s", "kernel launch and first flag; launches take 2 to 10 us"
    ),
    Constant("ring_low.hop", 9e-7, 2e-7, 3e-6, "s", "one flag over NVLink and its poll"),
    Constant(
        "ring_low.rate", 0.15, 0.02, 0.9, "of link", "flags travel with the data: at most 120/128 of the rate"
    ),
    Constant("ring_bulk.start", 1.2e-5, 1e-6, 5e-5, "s", "launch, and fences of the first chunk"),
    Constant("ring_bulk.hop", 1e-6, 1e-7, 8e-6, "s", "one chunk's fence and poll"),
    Constant(
        "ring_bulk.rate", 0.8, 0.5, 0.95, "of link", "payload of NVLink packets is 0.94 of the wire at most"
    ),
    Constant("ring_bulk.half", 1e6, 1e2, 3e7, "bytes", "half of the rate: channels and chunks not yet full"),
    Constant(
        "copy", 1e12, 2e11, 8e12, "bytes/s", "own block, by the SMs of the kernel: up to the memory's rate"
    ),
    Constant("direct_low.start", 7e-6, 1e-6, 3e-5, "s", "launch of a kernel of sends and receives"),
    Constant("direct_low.hop", 2e-7, 1e-9, 2e-6, "s", "one more peer"),
    Constant("direct_low.rate", 0.1, 0.01, 0.9, "of link", "low-latency protocol"),
    Constant("direct_bulk.start", 1.2e-5, 1e-6, 5e-5, "s", "launch and first fence"),
    Constant("direct_bulk.hop", 2e-7, 1e-9, 3e-6, "s", "one more peer"),
    Constant("direct_bulk.rate", 0.75, 0.4, 0.95, "of link", "payload of NVLink packets"),
    Constant("direct_bulk.half", 1e6, 1e2, 3e7, "bytes", "half of the rate"),
    Constant("message.start", 1.2e-5, 1e-6, 5e-5, "s", "launch and first fence"),
    Constant("message.rate", 0.78, 0.4, 0.95, "of link", "payload of NVLink packets"),
)
SWITCH_CONSTANTS = (
    Constant("switch.start", 1.5e-5, 1e-6, 6e-5, "s", "launch and barrier over the switch"),
    Constant("switch.rate", 0.65, 0.3, 0.95, "of link", "reads with reduction and multicast writes together"),
    Constant("switch.half", 1e6, 1e2, 3e7, "bytes", "half of the rate"),
)
NETWORK_CONSTANTS = (
    Constant(
        "low_hop", 8e-6, 2e-6, 4e-5, "s", "NIC, two switches, proxy thread; RDMA itself takes 2 to 5 us"
    ),
    Constant("hop", 2e-5, 3e-6, 1e-4, "s", "NIC, two switches, proxy thread and a chunk's credit"),
    Constant("efficiency", 0.95, 0.6, 0.99, "of NIC", "payload of RDMA packets of 4 kB is 0.98 at most"),
    Constant("decay", 0.02, 1e-4, 0.3, "1", "power of nodes / 2: collisions of routes, stragglers"),
    Constant("half", 1e-5, 1e-7, 1e-3, "s", "ramp of the rate, as bytes over rate"),
    Constant("peer", 1e-6, 1e-8, 2e-5, "s", "one more message posted"),
)
EXPERT_CONSTANTS = (
    Constant("start", 3e-5, 5e-6, 2e-4, "s", "launch, counts, barrier"),
    Constant("sm_rate", 1.5e10, 2e9, 8e10, "bytes/s", "one SM's loads and stores in flight"),
    Constant("link_rate", 3e11, 1e11, 4.5e11, "bytes/s", "NVLink 4 carries 450 GB/s in one direction"),
)


class Fit(NamedTuple):
    """Fitted numbers by name of constant, and the names that ended at the edge of their range."""

    values: dict[str, float]
    at_edge: tuple[str, ...]


def fit_constants(
    constants: Sequence[Constant], residuals: Callable[[dict[str, float]], Sequence[float]]
) -> Fit:
    """The best of a few starts; logs of the constants within their ranges."""
    low = np.log([constant.low for constant in constants])
    high = np.log([constant.high for constant in constants])
    guess = np.log([constant.guess for constant in constants])

    def named(logs: Vector) -> dict[str, float]:
        return {constant.name: float(math.exp(x)) for constant, x in zip(constants, logs)}

    def errors(logs: Vector) -> Vector:
        return np.concatenate([np.asarray(residuals(named(logs))), PRIOR_WEIGHT * (logs - guess)])

    margin = 1e-6
    runs = [
        least_squares(
            errors,
            np.clip(guess + math.log(factor), low + margin, high - margin),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=SOFT_SCALE,
            max_nfev=200,
        )
        for factor in STARTS
    ]
    best = min(runs, key=lambda run: float(run.cost))
    span = high - low
    edges = np.minimum(best.x - low, high - best.x) < EDGE * span
    return Fit(named(best.x), tuple(constant.name for constant, edge in zip(constants, edges) if edge))
