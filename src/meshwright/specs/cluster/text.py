"""A cluster as the TOML file that `Cluster.load` reads: what a short name means, written out to be changed."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import tomli_w

from meshwright.specs.cluster.cluster import LEVELS, ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec, Link, device_presets, load_device
from meshwright.specs.cluster.source import CLUSTER_SCHEMA


def cluster_text(cluster: ClusterSpec) -> str:
    """The file. Numbers are SI: bytes, seconds, bytes per second."""
    whole: dict[str, Any] = {"schema": CLUSTER_SCHEMA, "name": cluster.name}
    if cluster.costs:
        whole["costs"] = cluster.costs
    if cluster.routing != LEVELS:
        whole["routing"] = cluster.routing
    whole["devices"] = [_devices(device, len(list(same))) for device, same in groupby(cluster.devices)]
    whole["levels"] = [
        {
            "name": level.name,
            "num_devices": level.num_devices,
            "bandwidth": f"{level.bandwidth_bytes_per_s:.15g}B/s",
            "latency": f"{level.latency_s:.15g}s",
            "attached": level.attached,
            "is_shared": level.is_shared,
            "wiring": level.wiring,
            "fabric": level.fabric,
        }
        for level in cluster.levels
    ]
    if cluster.links:
        whole["links"] = [_link(link) for link in cluster.links]
    return tomli_w.dumps(whole)


def _devices(device: DeviceSpec, count: int) -> dict[str, Any]:
    """Its preset, or all that is known of it."""
    if device.name in device_presets() and load_device(device.name) == device:
        return {"preset": device.name, "count": count}
    told = {
        "name": device.name,
        "memory": f"{device.memory_bytes}B",
        "memory_bandwidth": f"{device.memory_bandwidth_bytes_per_s:.15g}B/s",
        "host": device.host,
        "price_per_hour_usd": device.price_per_hour_usd,
        "power_w": device.power_w,
        "source": device.source,
        "note": device.note,
        "num_units": device.num_units,
        "multiple": device.multiple,
        "count": count,
    }
    rates = {dtype: f"{rate:.15g}" for dtype, rate in device.flops_per_s.items()}
    return {**{key: value for key, value in told.items() if value not in (None, "")}, "flops_per_s": rates}


def _link(link: Link) -> dict[str, Any]:
    group = {"group": link.group} if link.group else {}
    source, target = (int(end.removeprefix("device ")) for end in (link.source, link.target))
    rates = {"bandwidth": f"{link.bandwidth_bytes_per_s:.15g}B/s", "latency": f"{link.latency_s:.15g}s"}
    return {"source": source, "target": target, **rates, **group}
