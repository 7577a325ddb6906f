"""Running cost: dollars and energy per billion tokens of a plan, from what a device costs and draws."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.error import PlanError

SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
BILLION = 1e9
# What the numbers leave out, for people.
POWER_ASSUMED = "energy: every device draws {watts:g} W all the time; hosts, network, cooling not counted"
PRICE_ASSUMED = "cost: {dollars:g} USD for a device and hour, all devices paid for the whole time"


@dataclass(frozen=True, slots=True)
class RunningCost:
    """Of a billion tokens: dollars, and joules; None where nobody said a price, or a power."""

    usd_per_billion_tokens: float | None
    joules_per_billion_tokens: float | None

    @property
    def kwh_per_billion_tokens(self) -> float | None:
        """The same energy in kilowatt-hours."""
        joules = self.joules_per_billion_tokens
        return None if joules is None else joules / JOULES_PER_KWH


def running_cost(cluster: ClusterSpec, step_s: float, tokens_per_step: float) -> RunningCost:
    """What a billion tokens cost on all devices of a cluster.

    Energy is power x devices x time: a board is taken to draw its power all the time, which is what it may draw at
    most; measured averages in training are lower. Only the devices are counted.

    Args:
        step_s: seconds of one step.
        tokens_per_step: expected tokens of one step.
    """
    seconds = step_s * BILLION / tokens_per_step
    usd_per_hour, watts = price_per_hour_usd(cluster), power_w(cluster)
    return RunningCost(
        None if usd_per_hour is None else usd_per_hour / SECONDS_PER_HOUR * seconds,
        None if watts is None else watts * seconds,
    )


def price_per_hour_usd(cluster: ClusterSpec) -> float | None:
    """Of all devices; None where one has no price."""
    return _sum([device.price_per_hour_usd for device in cluster.devices])


def power_w(cluster: ClusterSpec) -> float | None:
    """Of all devices; None where one has no power."""
    return _sum([device.power_w for device in cluster.devices])


def with_rates(
    cluster: ClusterSpec, price_per_hour_usd: float | None = None, power_w: float | None = None
) -> ClusterSpec:
    """The cluster whose devices cost and draw this, each; None leaves what they have. Raises PlanError below 0."""
    changes = {"price_per_hour_usd": price_per_hour_usd, "power_w": power_w}
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        if not 0 <= value < float("inf"):
            raise PlanError(f"{name} is {value!r}", allowed="a finite number from 0")
    if not given:
        return cluster
    changed: dict[int, DeviceSpec] = {}  # devices of one kind are one object, however many there are

    def rated(device: DeviceSpec) -> DeviceSpec:
        if id(device) not in changed:
            changed[id(device)] = replace(
                device,
                price_per_hour_usd=given.get("price_per_hour_usd", device.price_per_hour_usd),
                power_w=given.get("power_w", device.power_w),
            )
        return changed[id(device)]

    return replace(cluster, devices=tuple(map(rated, cluster.devices)))


def cost_assumptions(cluster: ClusterSpec) -> tuple[str, ...]:
    """What dollars and energy rest on, for people; nothing where neither is known."""
    number, dollars, watts = cluster.num_devices, price_per_hour_usd(cluster), power_w(cluster)
    lines = [] if dollars is None else [PRICE_ASSUMED.format(dollars=dollars / number)]
    return (*lines, *([] if watts is None else [POWER_ASSUMED.format(watts=watts / number)]))


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
