"""Making a cluster from what people have: a short name, a TOML file, or the computer at hand.

A short name is NODESxDEVICESxKIND ("32x8xH100"), DEVICESxKIND ("16384xH100": nodes of the usual size) or
KIND alone; several with + between them are the nodes of one cluster ("8xH100+8xA100"); behind it may stand the NIC of each
device ("32x8xH100 nic=100Gb/s"). What it leaves open is written into `ClusterSpec.assumptions`.

A file says what differs from that:

    schema = 1
    name = "ours"
    routing = "levels"          # optional, as costs: a name in the slot, see `meshwright list routings`

    [[devices]]                 # one table for each kind, in the order of their numbers
    preset = "H100"             # or: name, memory, memory_bandwidth, host, and a table [devices.flops_per_s]
    count = 64

    [[levels]]                  # from the innermost out; the last one joins all devices
    name = "node"
    num_devices = 8
    bandwidth = "450GB/s"       # of one link in one direction; GB is bytes, Gb is bits
    latency = "2us"
    wiring = "switch"           # optional; "pairs" (innermost level): a link of that bandwidth between each two devices

    [[levels]]
    name = "network"
    num_devices = 64
    bandwidth = "400Gb/s"
    latency = "5us"
    attached = "device"         # each device has its NIC; "group": one uplink for a group of the level below
    is_shared = false           # true: all links of one group draw on one capacity

    [[links]]                   # optional: single directed pairs that are wired differently
    source = 0
    target = 1
    bandwidth = "100GB/s"
    latency = "1us"
    group = "cable 0"           # optional: links of one group share one capacity
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

from meshwright.specs.bound.bound import MOST_DEVICES, check_most
from meshwright.specs.cluster.cluster import ATTACHED, FABRICS, LEVELS, ClusterSpec, Fabric, Level
from meshwright.specs.cluster.computer import memory_available_bytes, num_cores
from meshwright.specs.cluster.device import (
    ALIASES,
    DeviceSpec,
    Link,
    NodeSpec,
    device_from_table,
    load_device,
    usual_node,
    wiring_from_table,
)
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.slot import TRUST
from meshwright.specs.toml_table import TomlTable
from meshwright.specs.units import format_bandwidth, parse_bandwidth, parse_seconds

CLUSTER_SCHEMA = 1
# What `calibrate` makes untrue
ASSUMED_RATES = (
    "rates of cores, memory and loopback are assumed until `meshwright calibrate` has measured them"
)
_SHORT_NAME = re.compile(r"\s*(?:(\d+)\s*[x*]\s*)?(?:(\d+)\s*[x*]\s*)?([A-Za-z].*?)\s*$")
_NIC = " nic="  # behind a short name
_LEVEL_KEYS = ("name", "num_devices", "bandwidth", "latency", "attached", "is_shared", "wiring", "fabric")
_LINK_KEYS = ("source", "target", "bandwidth", "latency", "group")


class ClusterReader:
    """The ways to a ClusterSpec: `Cluster("32x8xH100")`, `Cluster.load("ours.toml")`, `Cluster.detect()`."""

    def __call__(self, text: str | ClusterSpec, nic: str | float | None = None) -> ClusterSpec:
        """A cluster by its short name, or by the path of a TOML file.

        Args:
            text: "32x8xH100", "16384xH100", "8xH100+8xA100", "H100", a path ending in .toml, or a ClusterSpec.
            nic: bandwidth of the NIC of each device in one direction, "400Gb/s" or bytes per second.

        Raises UnknownNameError for an unknown device and SpecError for what cannot be.
        """
        if isinstance(text, ClusterSpec):
            return text
        if text.endswith(".toml"):
            return self.load(text)
        return _mixed(text, nic) if "+" in text.partition(_NIC)[0] else _from_short_name(text, nic)

    def load(self, path: str | os.PathLike[str]) -> ClusterSpec:
        """A cluster from a TOML file as this module documents it; under a short name only where it is what that means, as a
        plan keeps the name alone. Raises SpecError naming file and key."""
        if not Path(path).exists():
            raise SpecError(
                f"there is no file {path}",
                next=f"check the path, or begin one: meshwright show 2x8xH100 -o {Path(path).name}",
            )
        made = _from_table(TomlTable.read(Path(path), SpecError))
        is_misnamed = self._is_of_another(made)
        return replace(made, name=f"{made.name} ({Path(path).name})") if is_misnamed else made

    def _is_of_another(self, made: ClusterSpec) -> bool:
        """Is its name the short name of a cluster that differs in anything?"""
        try:
            meant = self(made.name)
        except (SpecError, UnknownNameError):
            return False
        return replace(meant, assumptions=()) != replace(made, assumptions=())

    def detect(self, num_processes: int | None = None) -> ClusterSpec:
        """This computer as a cluster of CPU processes (one for each core unless said otherwise).

        Cores and memory are counted; rates are those of the preset `cpu` until a profile replaces them.
        """
        cores = num_cores()
        count = cores if num_processes is None else num_processes
        if count < 1:
            raise SpecError(f"{count} processes", allowed="at least one process")
        return _this_computer(count, cores, memory_available_bytes())


Cluster = ClusterReader()


def _from_short_name(text: str, nic: str | float | None) -> ClusterSpec:
    text, nic = _nic_of(text, nic)
    found = _SHORT_NAME.match(text)
    if found is None:
        raise SpecError(
            f"{text!r} names no cluster",
            allowed="NODESxDEVICESxKIND such as 32x8xH100, DEVICESxKIND, or a .toml file",
        )
    counts = [int(count) for count in found.groups()[:2] if count is not None]
    device, node = load_device(found[3]), usual_node(found[3])
    if any(count < 1 for count in counts):
        raise SpecError(f"{text!r} has {math.prod(counts)} devices", allowed="1 or more")
    check_most(f"devices of {text!r}", math.prod(counts), MOST_DEVICES)
    assumptions = [f"{device.name}: {device.note}"] if device.note else []
    if found[3].lower() in ALIASES:
        assumptions.append(f"{found[3]} is taken as {device.name}")
    if len(counts) == 2:
        num_nodes, per_node = counts
    else:
        num_nodes, per_node = _usual_nodes(text, counts[0] if counts else 1, node)
        if num_nodes > 1:
            assumptions.append(
                f"{text} means {num_nodes} nodes of {per_node}, the usual node of {device.name}"
            )
    nic_bytes_per_s, fabric = (node.nic_bytes_per_s, FABRICS[0]) if nic is None else _network(nic)
    if num_nodes > 1 and nic is None:
        rate = format_bandwidth(nic_bytes_per_s)
        assumptions.append(f"each device has a NIC of {rate} in each direction ({node.source})")
    levels = _node_levels(node, num_nodes, per_node, nic_bytes_per_s, fabric)
    return ClusterSpec(
        _named(text, nic), (device,) * (num_nodes * per_node), levels, assumptions=tuple(assumptions)
    )


def _nic_of(text: str, nic: str | float | None) -> tuple[str, str | float | None]:
    """A short name without the NIC behind it, and that, unless another is given."""
    text, behind, said = text.partition(_NIC)
    return text, said if behind and nic is None else nic


def _network(nic: str | float) -> tuple[float, Fabric]:
    """Bytes per second of a NIC, and the fabric that may stand behind them: "50GB/s efa"."""
    if not isinstance(nic, str):
        return parse_bandwidth(nic), FABRICS[0]
    rate, _, behind = nic.strip().rpartition(" ")
    fabric = next((each for each in FABRICS if each == behind.lower()), None)
    try:
        return parse_bandwidth(rate if fabric else nic), fabric or FABRICS[0]
    except SpecError as error:
        raise SpecError(
            f"a NIC of {nic!r}",
            allowed=f"a bandwidth such as 400Gb/s (bits) or 50GB/s (bytes), alone or with {' or '.join(FABRICS)} behind it",
        ) from error


def _named(text: str, nic: str | float | None) -> str:
    """The NIC that was given is part of the name: a plan keeps the name only, and runs on this cluster again."""
    return text if nic is None else f"{text}{_NIC}{nic if isinstance(nic, str) else f'{nic!r}B/s'}"


def _mixed(text: str, nic: str | float | None) -> ClusterSpec:
    """Nodes of several kinds, as many devices each, with the slowest's links in a node and between nodes."""
    text, nic = _nic_of(text, nic)
    nodes = [_from_short_name(part, nic) for part in text.split("+")]
    inner = [each.levels[0] for each in nodes]
    if len({(level.num_devices, level.wiring, level.is_shared) for level in inner}) > 1:
        raise SpecError(
            f"{text!r}: nodes of {', '.join(str(level.num_devices) for level in inner)} devices, or wired unlike each other",
            allowed="as many devices a node, wired alike",
            next="write a cluster file: meshwright show 8xH100 -o cluster.toml is one to begin with",
        )
    devices = tuple(device for each in nodes for device in each.devices)
    usual = [usual_node(each.devices[0].name) for each in nodes]
    least = min(node.nic_bytes_per_s for node in usual)
    rate, fabric = (least, FABRICS[0]) if nic is None else _network(nic)
    outer = Level("network", len(devices), rate, max(node.nic_latency_s for node in usual), fabric=fabric)
    slowest = replace(
        inner[0],
        bandwidth_bytes_per_s=min(level.bandwidth_bytes_per_s for level in inner),
        latency_s=max(level.latency_s for level in inner),
    )
    assumptions = dict.fromkeys(line for each in nodes for line in each.assumptions)
    assumptions[f"links of all nodes are those of the slowest: {format_bandwidth(slowest.bandwidth_bytes_per_s)} inside, "
                f"{format_bandwidth(outer.bandwidth_bytes_per_s)} between them"] = None  # fmt: skip
    return ClusterSpec(_named(text, nic), devices, (slowest, outer), assumptions=tuple(assumptions))


def _usual_nodes(text: str, num_devices: int, node: NodeSpec) -> tuple[int, int]:
    """Nodes and devices of each: one node as far as it reaches, then whole nodes only."""
    if num_devices <= node.num_devices:
        return 1, num_devices
    if num_devices % node.num_devices:
        raise SpecError(
            f"{text!r}: {num_devices} devices do not fill nodes of {node.num_devices}",
            allowed=f"a multiple of {node.num_devices}, or NODESxDEVICESxKIND for other nodes",
        )
    return num_devices // node.num_devices, node.num_devices


def _node_levels(
    node: NodeSpec, num_nodes: int, per_node: int, nic_bytes_per_s: float, fabric: Fabric = FABRICS[0]
) -> tuple[Level, ...]:
    inner = Level(
        "node",
        per_node,
        node.bandwidth_bytes_per_s,
        node.latency_s,
        is_shared=node.is_shared,
        wiring=node.wiring,
    )
    if num_nodes == 1:
        return (inner,)
    network = Level("network", num_nodes * per_node, nic_bytes_per_s, node.nic_latency_s, fabric=fabric)
    return (inner, network)


def _this_computer(count: int, cores: int, memory_bytes: int) -> ClusterSpec:
    preset, node = load_device("cpu"), usual_node("cpu")
    cores_each = max(1.0, cores / count)
    device = DeviceSpec(
        name="cpu",
        memory_bytes=memory_bytes // count,
        memory_bandwidth_bytes_per_s=preset.memory_bandwidth_bytes_per_s,
        flops_per_s={dtype: rate * cores_each for dtype, rate in preset.flops_per_s.items()},
        host=preset.host,
        source=f"{cores} cores and {memory_bytes} bytes counted here; rates: {preset.source}",
        note=preset.note,
    )
    levels = _node_levels(node, 1, count, node.nic_bytes_per_s)
    return ClusterSpec("this computer", (device,) * count, levels, assumptions=(ASSUMED_RATES,))


def _from_table(table: TomlTable) -> ClusterSpec:
    table.check_schema(CLUSTER_SCHEMA)
    table.check_keys(("schema", "name", "costs", "routing", "devices", "levels", "links"))
    devices = tuple(device for entry in table.tables("devices") for device in _devices(entry))
    check_most(f"{table.where}: devices", len(devices), MOST_DEVICES)
    costs, routing = table.text("costs", ""), table.text("routing", LEVELS)
    for reference in (costs, routing):
        TRUST.doubt(reference)
    return ClusterSpec(
        name=table.text("name"),
        costs=costs,
        routing=routing,
        devices=devices,
        levels=tuple(_level(entry) for entry in table.tables("levels")),
        links=tuple(_explicit_link(entry) for entry in table.tables("links")),
    )


def _devices(table: TomlTable) -> tuple[DeviceSpec, ...]:
    count = table.integer("count")
    if count < 1:
        raise SpecError(f"{table.where}: 'count' is {count}", allowed="a whole number from 1")
    check_most(f"{table.where}: 'count'", count, MOST_DEVICES)
    if "preset" in table.values:
        table.check_keys(("preset", "count"))
        return (load_device(table.text("preset")),) * count
    fields = {key: value for key, value in table.values.items() if key != "count"}
    return (device_from_table(TomlTable(fields, table.where, SpecError)),) * count


def _level(table: TomlTable) -> Level:
    table.check_keys(_LEVEL_KEYS)
    attached = table.text("attached", "device")
    if attached not in ATTACHED:
        raise SpecError(f"{table.where}: 'attached' is {attached!r}", allowed=" or ".join(ATTACHED))
    fabric = next((each for each in FABRICS if each == table.text("fabric", FABRICS[0])), None)
    if fabric is None:
        raise SpecError(f"{table.where}: 'fabric' is {table.text('fabric')!r}", allowed=" or ".join(FABRICS))
    return Level(
        name=table.text("name"),
        num_devices=table.integer("num_devices"),
        bandwidth_bytes_per_s=table.quantity("bandwidth", parse_bandwidth),
        latency_s=table.quantity("latency", parse_seconds),
        attached="group" if attached == "group" else "device",
        is_shared=table.flag("is_shared", False),
        wiring=wiring_from_table(table, "switch"),
        fabric=fabric,
    )


def _explicit_link(table: TomlTable) -> Link:
    table.check_keys(_LINK_KEYS)
    return Link(
        source=f"device {table.integer('source')}",
        target=f"device {table.integer('target')}",
        bandwidth_bytes_per_s=table.quantity("bandwidth", parse_bandwidth),
        latency_s=table.quantity("latency", parse_seconds),
        group=table.text("group", ""),
    )
