"""DeviceSpec: one accelerator or CPU process by the numbers of its data sheet; Link: one directed wire."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from meshwright.specs.cluster.machine import HOSTS, MACHINES, Host, Machine
from meshwright.specs.dtype import DTYPE_BYTES
from meshwright.specs.error import NEAR_MATCH_CUTOFF, SpecError, UnknownNameError
from meshwright.specs.printable import check_printable
from meshwright.specs.toml_table import TomlTable
from meshwright.specs.units import parse_bandwidth, parse_bytes, parse_flops_per_s, parse_seconds

# How the devices of a node are joined: a switch gives any group the whole rate of its ports; with one link for each
# pair a group has only the links between its members; of "other" nothing is known.
Wiring = Literal["switch", "pairs", "other"]
WIRINGS: tuple[Wiring, ...] = ("switch", "pairs", "other")
_DEVICE_KEYS = (
    *("name", "memory", "memory_bandwidth", "host", "flops_per_s"),
    *("price_per_hour_usd", "power_w", "source", "note", "num_units", "multiple"),
)
_NODE_KEYS = (
    *("num_devices", "bandwidth", "latency", "is_shared", "nic", "nic_latency", "source"),
    *("wiring", "least_message"),
)


# What people say -> the preset that is meant, by the memory or the form that is sold most.
ALIASES: Mapping[str, str] = {
    "a100": "a100-80", "a100-80gb": "a100-80", "a100-40gb": "a100-40", "a100-sxm4-80gb": "a100-80",
    "a100-sxm4-40gb": "a100-40", "h100-80": "h100", "h100-80gb": "h100", "h100-sxm": "h100", "h100-sxm5": "h100",
    "h200-141gb": "h200", "h200-sxm": "h200", "4090": "rtx-4090", "mi250": "mi250x",
    "mi300": "mi300x", "mi325": "mi325x", "mi350": "mi350x", "mi355": "mi355x",
}  # fmt: skip


@dataclass(frozen=True)
class DeviceSpec:
    """One device.

    `flops_per_s` is the dense peak by number format; `host` says whether the host issues everything at once
    ("asynchronous", CUDA) or waits and computes itself ("in_order", CPU). Prices and power are optional.
    `note` says what one "device" is where that is not obvious. `num_units` are the multiprocessors (compute units) over
    which tiles of a matrix product run in waves, `multiple` is what dimensions of products should be multiples of; None
    where nobody said. Raises SpecError on numbers that cannot be.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float] = field(hash=False)
    host: Host = "asynchronous"
    price_per_hour_usd: float | None = None
    power_w: float | None = None
    source: str = ""
    note: str = ""
    num_units: int | None = None
    multiple: int | None = None

    def __post_init__(self) -> None:
        check_printable("device", self.name)
        object.__setattr__(self, "flops_per_s", dict(self.flops_per_s))  # a copy nobody else changes
        numbers: dict[str, float] = {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            **{f"flops_per_s of {dtype}": rate for dtype, rate in self.flops_per_s.items()},
        }
        counts = {"num_units": self.num_units, "multiple": self.multiple}
        numbers |= {what: count for what, count in counts.items() if count is not None}
        for what, value in numbers.items():
            if not value > 0:
                raise SpecError(f"device {self.name}: {what} is {value!r}", allowed="a number above 0")
        unknown = [dtype for dtype in self.flops_per_s if dtype not in DTYPE_BYTES]
        if unknown or not self.flops_per_s:
            given = f"number format {unknown[0]!r}" if unknown else "no number format at all"
            near = (
                difflib.get_close_matches(unknown[0], DTYPE_BYTES, cutoff=NEAR_MATCH_CUTOFF)
                if unknown
                else []
            )
            raise SpecError(
                f"device {self.name}: flops_per_s has {given}", allowed=", ".join(DTYPE_BYTES),
                next=f"write {near[0]}" if near else "",
            )  # fmt: skip
        if self.host not in HOSTS:
            raise SpecError(f"device {self.name}: host is {self.host!r}", allowed=" or ".join(HOSTS))

    @property
    def machine(self) -> Machine:
        """The rules of its kind."""
        return MACHINES[self.host]

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak of a number format. Raises SpecError where the data sheet has none."""
        if dtype not in self.flops_per_s:
            raise SpecError(
                f"device {self.name} has no peak rate for {dtype}", allowed=", ".join(self.flops_per_s)
            )
        return self.flops_per_s[dtype]


@dataclass(frozen=True, slots=True)
class Link:
    """One directed wire. Names of ends are "device 3" or a switch such as "node 0".

    `latency_s` is that of crossing this link once. Links with the same `group` share one capacity of
    `bandwidth_bytes_per_s` (a bus, a half-duplex cable); by default a link is alone in its group.
    """

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float
    group: str = ""

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0 or not self.latency_s >= 0:
            raise SpecError(
                f"link {self.source} -> {self.target}: bandwidth {self.bandwidth_bytes_per_s!r} bytes/s, "
                f"latency {self.latency_s!r} s",
                allowed="a bandwidth above 0 and a latency from 0",
            )
        if not self.group:
            object.__setattr__(self, "group", f"{self.source} -> {self.target}")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """How devices of one kind are usually built into nodes and wired; what a cluster's short name assumes.

    Bandwidths are bytes per second of one device in one direction, with the wiring "pairs" those of one of its links;
    `is_shared`: all devices of a node share
    that capacity (the memory of one CPU). `least_message_bytes`: from which size on a message inside the node was
    measured to be worth its latency; None where the curves of collectives have to say it.
    """

    num_devices: int
    bandwidth_bytes_per_s: float
    latency_s: float
    is_shared: bool
    nic_bytes_per_s: float
    nic_latency_s: float
    source: str
    wiring: Wiring = "other"
    least_message_bytes: float | None = None


def load_device(name: str) -> DeviceSpec:
    """The preset device of that name, case ignored. Raises UnknownNameError."""
    return _preset(name)[0]


def usual_node(name: str) -> NodeSpec:
    """The usual node of a preset device. Raises UnknownNameError."""
    return _preset(name)[1]


def device_presets() -> tuple[str, ...]:
    """Names of the devices that come with the package, sorted."""
    return tuple(sorted(device.name for device, _ in _presets().values()))


def device_from_table(table: TomlTable) -> DeviceSpec:
    """A device from a TOML table with memory, memory_bandwidth and a table flops_per_s. Raises its error."""
    table.check_keys(_DEVICE_KEYS)
    rates = table.table("flops_per_s")
    host = table.text("host", "asynchronous")
    if host not in HOSTS:
        raise table.error(f"{table.where}: 'host' is {host!r}", allowed=" or ".join(HOSTS))
    return DeviceSpec(
        name=table.text("name"),
        memory_bytes=int(table.quantity("memory", parse_bytes)),
        memory_bandwidth_bytes_per_s=table.quantity("memory_bandwidth", parse_bandwidth),
        flops_per_s={dtype: rates.quantity(dtype, parse_flops_per_s) for dtype in rates.values},
        host="in_order" if host == "in_order" else "asynchronous",
        price_per_hour_usd=_optional(table, "price_per_hour_usd"),
        power_w=_optional(table, "power_w"),
        source=table.text("source", ""),
        note=table.text("note", ""),
        num_units=_count(table, "num_units"),
        multiple=_count(table, "multiple"),
    )


def _optional(table: TomlTable, key: str) -> float | None:
    return table.quantity(key, float) if key in table.values else None


def _count(table: TomlTable, key: str) -> int | None:
    return table.integer(key) if key in table.values else None


def _node_from_table(table: TomlTable) -> NodeSpec:
    table.check_keys(_NODE_KEYS)
    return NodeSpec(
        num_devices=table.integer("num_devices"),
        bandwidth_bytes_per_s=table.quantity("bandwidth", parse_bandwidth),
        latency_s=table.quantity("latency", parse_seconds),
        is_shared=table.flag("is_shared", False),
        nic_bytes_per_s=table.quantity("nic", parse_bandwidth),
        nic_latency_s=table.quantity("nic_latency", parse_seconds),
        source=table.text("source"),
        wiring=wiring_from_table(table, "other"),
        least_message_bytes=table.quantity("least_message", parse_bytes)
        if "least_message" in table.values
        else None,
    )


def wiring_from_table(table: TomlTable, default: Wiring) -> Wiring:
    """What a table says of its wiring. Raises its error on a word that is none."""
    given = table.text("wiring", default)
    wiring = next((known for known in WIRINGS if known == given), None)
    if wiring is None:
        raise table.error(f"{table.where}: 'wiring' is {given!r}", allowed=" or ".join(WIRINGS))
    return wiring


@cache
def _presets() -> Mapping[str, tuple[DeviceSpec, NodeSpec]]:
    """Device and usual node by lower-case file name."""
    folder = resources.files("meshwright.specs") / "presets" / "devices"
    found = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".toml"):
            with resources.as_file(entry) as path:
                table = TomlTable.read(Path(path), SpecError)
            pair = device_from_table(table.table("device")), _node_from_table(table.table("node"))
            found[pair[0].name.lower()] = pair
    return found


def _preset(name: str) -> tuple[DeviceSpec, NodeSpec]:
    found = _presets().get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise UnknownNameError("device", name, device_presets())
    return found
