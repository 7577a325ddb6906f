"""`meshwright list`: models, devices, clusters, schedules and passes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import catalog
from meshwright.api.subjects.loading import cluster_named
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.cli.look.looking import words
from meshwright.specs import load_device, load_model, units
from meshwright.specs.error import UnknownNameError

Facts = dict[str, Any]


def list_names(
    out: Output,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="models, devices, clusters, schedules or passes.")
    ],
) -> Result:
    """List models, devices, clusters, schedules or passes by name."""
    rows: Mapping[str, Callable[[str], Facts]] = {
        "models": _model,
        "devices": _device,
        "clusters": _cluster,
        "schedules": _schedule,
        "passes": _pass,
    }
    slots = {slot.plural: name for name, slot in catalog.SLOTS.items()}
    rows = {**{plural: partial(catalog.described, slot) for plural, slot in slots.items()}, **rows}
    if kind not in rows:
        raise UnknownNameError("list", kind, rows)
    filling = catalog.slot_names(slots[kind]) if kind in slots else ()
    found = [rows[kind](name) for name in sorted({*catalog.names(kind), *filling})]
    if not found:
        one = catalog.SLOTS[slots[kind]]
        told = f"no {kind} have a name yet: give code of your own, --fix {one.name}=./mine.py:NAME, which is {one.protocol}"
        return Result({kind: []}, [Text(told, overflow="fold")])
    return Result({kind: found}, [table_of([_shown(row) for row in found])])


def _model(name: str) -> Facts:
    model = load_model(name)
    sizes = ("num_parameters", "num_layers", "hidden_size", "vocabulary_size")
    return {"name": name, **{size: getattr(model, size) for size in sizes}}


def _device(name: str) -> Facts:
    device = load_device(name)
    return {
        "name": name,
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "bfloat16_flops_per_s": device.flops_per_s.get("bfloat16"),
        "float32_flops_per_s": device.flops_per_s.get("float32"),
    }


def _cluster(name: str) -> Facts:
    cluster = cluster_named(name)
    level = cluster.levels[-1]
    return {
        "name": name,
        "num_devices": cluster.num_devices,
        "device": cluster.devices[0].name,
        "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s,
        "latency_s": level.latency_s,
    }


def _schedule(name: str) -> Facts:
    found = catalog.find_schedule(name)
    return {
        "name": name,
        "num_chunks": found.num_chunks,
        "splits_backward": found.splits_backward,
        "summary": found.summary,
        "options": catalog.described("schedule", name)["options"],
    }


def _pass(name: str) -> Facts:
    """One that plans name has options; what their fields imply has none."""
    if name in catalog.slot_names("passes"):
        return catalog.described("passes", name)
    return {"name": name, "summary": catalog.pass_summary(name), "options": []}


def _shown(row: Facts) -> Facts:
    """The row for people: numbers with their units."""
    formats: Mapping[str, Callable[[Any], str]] = {
        "num_parameters": units.format_count,
        "memory_bytes": units.format_bytes,
        "memory_bandwidth_bytes_per_s": units.format_bandwidth,
        "bandwidth_bytes_per_s": units.format_bandwidth,
        "bfloat16_flops_per_s": units.format_flops_per_s,
        "float32_flops_per_s": units.format_flops_per_s,
        "latency_s": units.format_seconds,
        "splits_backward": lambda value: "yes" if value else "no",
        "options": lambda options: ", ".join(f"{one['name']}={one['default']}" for one in options),
    }
    return {
        words(key): formats[key](value) if key in formats and value is not None else value
        for key, value in row.items()
    }
