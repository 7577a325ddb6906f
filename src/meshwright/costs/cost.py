"""Cost: what a piece of work or an exchange takes, alone and beside others; and the two roles that produce it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from meshwright.ir.table import Exchange, Work
from meshwright.specs.error import SpecError
from meshwright.specs.plan.prediction import Basis, Prediction


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """P(R): the speed of a kernel that is granted a share of what it demands (NanoFlow, arXiv 2408.12757, calls them so).

    Attributes:
        points: (share granted, speed), both parts of 1, in order; between them, and to (0, 0) and (1, 1), lines.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        ascends = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.path))
        if not ascends or any(speed <= 0 for _, speed in self.points):
            raise SpecError(
                f"a speed curve through {self.points}",
                allowed="shares between 0 and 1 that ascend, with speeds of more than 0 and up to 1 that do not fall",
                next="give measured (share, speed) without (0, 0) and (1, 1), the speed alone being 1",
            )

    def speed(self, share: float) -> float:
        """Speed at a share granted, by lines between the points."""
        for (share0, speed0), (share1, speed1) in pairwise(self.path):
            if share < share1:
                return speed0 + (speed1 - speed0) * ((share - share0) / (share1 - share0))
        return 1.0

    @property
    def path(self) -> tuple[tuple[float, float], ...]:
        """The points with both ends."""
        return ((0.0, 0.0), *self.points, (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one instruction takes.

    Attributes:
        seconds: how long it holds its stream (and its links).
        latency_s: how much later what it writes is complete.
        compute_share: part of a device's compute that it needs while it runs, 0 to 1.
        memory_share: part of a device's memory bandwidth.
        link_share: part of the bandwidth of each link on its path.
        joules: energy; 0 when unknown.
        slack_s: part of `seconds` in which the device waits for its host; exchanges inside a work may run then.
        uncertainty: relative half width of the interval around `seconds`.
        basis: how well the number is known.
        curve: how fast it runs where it is granted only a part of a share that it needs; None: in proportion (decision 5).
    """

    seconds: float = 0.0
    latency_s: float = 0.0
    compute_share: float = 1.0
    memory_share: float = 0.0
    link_share: float = 0.0
    joules: float = 0.0
    slack_s: float = 0.0
    uncertainty: float = 0.0
    basis: Basis = "measured here"
    curve: SpeedCurve | None = None

    def prediction(self) -> Prediction:
        """Seconds with their interval and basis."""
        return Prediction.within(self.seconds, self.uncertainty, self.basis)

    def scaled(self, factor: float) -> Cost:
        """The same with `factor` times the seconds and joules."""
        return replace(
            self, seconds=self.seconds * factor, joules=self.joules * factor, slack_s=self.slack_s * factor
        )


class Flow(NamedTuple):
    """`bytes` on the way from device `source` to device `target`, while an exchange runs."""

    source: int
    target: int
    bytes: float


class CostModel(Protocol):
    """Prices computes. Asked once per distinct work and class of device."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        """What `work` takes on `device` (a DeviceSpec; None: the device the model was made for)."""
        ...


class CommunicationModel(Protocol):
    """Prices exchanges, and says what they put on which way."""

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """What moving `num_bytes` takes; `devices` are (source, target), or the members of the group."""
        ...

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """The bytes that it sends from each device to each other one, for contention on links."""
        ...


def rounded(document: Any, digits: int) -> Any:
    """Plain data with its numbers to so many digits: more would pretend to be known."""
    if isinstance(document, Mapping):
        return {str(key): rounded(value, digits) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [rounded(value, digits) for value in document]
    return float(f"{document:.{digits}g}") if isinstance(document, float) else document
