"""A small search: two devices of a data sheet, a decoder of four layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.costs.pricing import Pricing
from meshwright.costs.roofline import Roofline
from meshwright.planner import Plans, every_plan
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Workload

MODEL = ModelSpec.decoder(4, 64, 4, max_sequence_length=64)
WORKLOAD = Workload(8, 64)


def cluster(num_devices: int = 2, memory_bytes: int | None = None) -> ClusterSpec:
    """CPU processes, with as much memory as said."""
    found = Cluster(f"{num_devices}xcpu")
    if memory_bytes is None:
        return found
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in found.devices)
    return replace(found, devices=devices)


def search(on: ClusterSpec | None = None, **options: Any) -> Plans:
    """All plans of the model on the cluster."""
    on = on or cluster()
    return every_plan(MODEL, on, WORKLOAD, pricing=Pricing(Roofline(on), ()), **options)
