"""ClusterSpec: devices, the levels they are wired in, and the directed links between any two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from meshwright.specs.cluster.device import WIRINGS, DeviceSpec, Link, Wiring
from meshwright.specs.cluster.machine import Machine
from meshwright.specs.error import SpecError
from meshwright.specs.printable import check_printable
from meshwright.specs.slot import resolve

Attached = Literal["device", "group"]
ATTACHED: tuple[Attached, ...] = ("device", "group")
Fabric = Literal["infiniband", "efa"]
FABRICS: tuple[Fabric, ...] = ("infiniband", "efa")
LEVELS = "levels"  # the routing of a cluster that names none


@dataclass(frozen=True, slots=True)
class Level:
    """One level of wiring: a switch joins groups of `num_devices` consecutive devices.

    Each unit below has one link up to the switch and one down, of `bandwidth_bytes_per_s` in each direction.
    A unit is a device (attached "device": an NVLink port, a NIC of its own) or a whole group of the level
    below (attached "group": one uplink that its devices share). `latency_s` is that of going up and down
    once. `is_shared`: all links of one group draw on one capacity (a bus; the memory of one CPU).

    `wiring` "pairs", of the innermost level only: there is no switch, each two devices of a group have a link of their own
    of `bandwidth_bytes_per_s` in each direction (xGMI of an MI300X node), so a few of them have only the links between them.

    `fabric`, of levels between nodes: "infiniband" (and Ethernet with RDMA, which is not told apart), or "efa", Amazon's,
    whose messages wait longer for each other; what collectives take there is measured apart.
    """

    name: str
    num_devices: int
    bandwidth_bytes_per_s: float
    latency_s: float
    attached: Attached = "device"
    is_shared: bool = False
    wiring: Wiring = "switch"
    fabric: Fabric = "infiniband"

    @property
    def is_paired(self) -> bool:
        """Have each two of its devices a link of their own?"""
        return self.wiring == "pairs"

    def group_bytes_per_s(self, num_members: int) -> float:
        """What each of so many devices of a group has to the others together, in one direction: its port of the switch, or
        its links to them, one less than they are."""
        return self.bandwidth_bytes_per_s * (max(1, num_members - 1) if self.is_paired else 1)


@dataclass(frozen=True)
class ClusterSpec:
    """Devices numbered from 0, and levels from the innermost out; the last level joins all devices.

    `links` overrides the levels for single directed pairs "device i" -> "device j". `assumptions` are
    sentences about what a short name left open. `costs` is a slot: the name of what prices works and messages on it
    (empty: what its machine is priced with); `routing` is one, too: what says which links a transfer takes. Raises
    SpecError when levels do not nest or do not join all devices.
    """

    name: str
    devices: tuple[DeviceSpec, ...]
    levels: tuple[Level, ...]
    links: tuple[Link, ...] = ()
    assumptions: tuple[str, ...] = ()
    costs: str = ""
    routing: str = LEVELS

    def __post_init__(self) -> None:
        check_printable("cluster", self.name)
        if not self.devices:
            raise SpecError(f"cluster {self.name} has no devices", allowed="at least one")
        self._check_levels()
        names = {f"device {index}" for index in range(self.num_devices)} if self.links else set()
        for link in self.links:
            if link.source not in names or link.target not in names or link.source == link.target:
                raise SpecError(
                    f"cluster {self.name}: link {link.source} -> {link.target}",
                    allowed=f"two different devices from 0 to {self.num_devices - 1}",
                )

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @cached_property
    def is_homogeneous(self) -> bool:
        """Are all devices of one kind?"""
        first = self.devices[0]
        return all(device is first or device == first for device in self.devices)

    @property
    def machine(self) -> Machine:
        """The rules of its devices' kind."""
        return self.devices[0].machine

    @cached_property
    def memory_bytes(self) -> int:
        """Memory of the smallest device."""
        return min(device.memory_bytes for device in self.devices)

    def device(self, index: int) -> DeviceSpec:
        """Device number `index`. Raises SpecError."""
        self._check_device(index)
        return self.devices[index]

    def level_between(self, source: int, target: int) -> Level | None:
        """The innermost level that joins two devices; None for a device with itself."""
        depth = self._depth_between(source, target)
        return None if depth is None else self.levels[depth]

    def is_paired(self, devices: Sequence[int]) -> bool:
        """Are these of one node that is wired in pairs?"""
        inner = self.levels[0]
        return inner.is_paired and len({device // inner.num_devices for device in devices}) == 1

    def path(self, source: int, target: int) -> tuple[Link, ...]:
        """Directed links from one device to another, in order; empty for a device with itself.

        Latencies add along the path; bandwidth is the least of the links', as far as their groups are free.

        Raises PlanError where nobody knows its routing, SpecError where that gives no links.
        """
        if not self.is_routed or source == target:
            return self.by_levels(source, target)
        found = tuple(resolve("routing", self.routing)(self, source, target))
        if not found or not all(isinstance(link, Link) for link in found):
            raise SpecError(
                f"routing {self.routing} gives {found} from {source} to {target}", allowed="a Link or more"
            )
        return found

    @property
    def is_routed(self) -> bool:
        """Does something else than its levels and links say which way a transfer takes?"""
        return self.routing != LEVELS

    def by_levels(self, source: int, target: int) -> tuple[Link, ...]:
        """The link that joins the two, or up to the switch that joins them and down."""
        depth = self._depth_between(source, target)
        if depth is None:
            return ()
        for link in self.links:
            if (link.source, link.target) == (f"device {source}", f"device {target}"):
                return (link,)
        inner = self.levels[0]
        if depth == 0 and inner.is_paired:
            return (
                Link(f"device {source}", f"device {target}", inner.bandwidth_bytes_per_s, inner.latency_s),
            )
        up = self._climb(source, depth, is_up=True)
        down = self._climb(target, depth, is_up=False)
        return (*up, *reversed(down))

    def bandwidth_bytes_per_s(self, source: int, target: int) -> float:
        """Bandwidth of the narrowest link of the path. Raises SpecError for a device with itself."""
        path = self.path(source, target)
        if not path:
            raise SpecError(f"device {source} sends to itself", allowed="two different devices")
        return min(link.bandwidth_bytes_per_s for link in path)

    def latency_s(self, source: int, target: int) -> float:
        """Latency of the whole path."""
        return sum(link.latency_s for link in self.path(source, target))

    def with_assumption(self, sentence: str) -> ClusterSpec:
        """The same cluster with one more assumption written down."""
        return replace(self, assumptions=(*self.assumptions, sentence))

    def _depth_between(self, source: int, target: int) -> int | None:
        self._check_device(source)
        self._check_device(target)
        if source == target:
            return None
        joined = (
            depth
            for depth, level in enumerate(self.levels)
            if source // level.num_devices == target // level.num_devices
        )
        return next(joined)

    def _climb(self, device: int, depth: int, *, is_up: bool) -> tuple[Link, ...]:
        """Links between a device and the switch of level `depth`, from the device on."""
        level = self.levels[depth]
        switch = f"{level.name} {device // level.num_devices}"
        if level.attached == "device" or depth == 0:
            return (_link(f"device {device}", switch, level, is_up),)
        below = self.levels[depth - 1]
        unit = f"{below.name} {device // below.num_devices}"
        inner = () if below.is_paired else self._climb(device, depth - 1, is_up=is_up)
        return (*inner, _link(unit, switch, level, is_up))

    def _check_device(self, index: int) -> None:
        if not 0 <= index < self.num_devices:
            raise SpecError(
                f"cluster {self.name} has no device {index}", allowed=f"0 to {self.num_devices - 1}"
            )

    def _check_levels(self) -> None:
        inner = 1
        for level in self.levels:
            if level.num_devices < 1 or level.num_devices % inner:
                raise SpecError(
                    f"cluster {self.name}: level {level.name!r} joins {level.num_devices} devices, "
                    f"the level inside {inner}",
                    allowed="levels from the innermost out, each a multiple of the one before",
                )
            if not level.bandwidth_bytes_per_s > 0 or not level.latency_s >= 0:
                raise SpecError(
                    f"cluster {self.name}: level {level.name!r} has bandwidth "
                    f"{level.bandwidth_bytes_per_s!r} bytes/s and latency {level.latency_s!r} s",
                    allowed="a bandwidth above 0 and a latency from 0",
                )
            if level.attached not in ATTACHED:
                raise SpecError(
                    f"cluster {self.name}: level {level.name!r} is attached {level.attached!r}",
                    allowed=" or ".join(ATTACHED),
                )
            if level.fabric not in FABRICS:
                raise SpecError(
                    f"cluster {self.name}: level {level.name!r} has the fabric {level.fabric!r}",
                    allowed=" or ".join(FABRICS),
                )
            _check_wiring(self.name, level, is_innermost=level is self.levels[0])
            inner = level.num_devices
        if inner < self.num_devices:
            raise SpecError(
                f"cluster {self.name}: {self.num_devices} devices, but the outermost level joins {inner}",
                allowed="a last level that joins all devices",
            )


def _check_wiring(cluster: str, level: Level, *, is_innermost: bool) -> None:
    """Raise SpecError on a wiring that nobody knows, or pairs where links are no device's own."""
    if level.wiring not in WIRINGS:
        raise SpecError(
            f"cluster {cluster}: level {level.name!r} has the wiring {level.wiring!r}",
            allowed=" or ".join(WIRINGS),
        )
    if level.is_paired and (level.is_shared or level.attached != "device" or not is_innermost):
        raise SpecError(
            f"cluster {cluster}: level {level.name!r} is wired in pairs",
            allowed="pairs of devices at the innermost level, not shared",
            next="describe links that differ one by one, as [[links]]",
        )


def _link(unit: str, switch: str, level: Level, is_up: bool) -> Link:
    """One half of a crossing: the latency is charged on the way up, so that a path has it once a switch."""
    source, target = (unit, switch) if is_up else (switch, unit)
    group = switch if level.is_shared else ""
    return Link(source, target, level.bandwidth_bytes_per_s, level.latency_s if is_up else 0.0, group)
