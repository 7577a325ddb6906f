"""Finds models, devices, clusters, schedules, passes and systems by name, lazily; and schedules in a user's own file."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.catalog.slots import (
    SLOTS,
    cards,
    filled_by_systems,
    filler,
    offered,
    own_schedules,
    slot_names,
)
from meshwright.catalog.user_file import guard_calls, guarded
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster.device import device_presets
from meshwright.specs.config.source import model_presets
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.slot import Reference

# Beside what the core itself lists, the slots that names fill, in the plural.
SLOT_KINDS = {slot.plural: name for name, slot in SLOTS.items() if name not in ("schedule", "passes")}
KINDS = ("models", "devices", "clusters", "schedules", "passes", "systems", *SLOT_KINDS)
PASSES: Mapping[str, str] = {
    "recompute": "meshwright.lowering.memory.recompute:Recompute",
    "split_backward": "meshwright.lowering.split_backward:SplitBackward",
    "reduce_gradients": "meshwright.lowering.sharding.reduction:ReduceGradients",
    "optimizer_step": "meshwright.lowering.sharding.reduction:OptimizerStep",
    "transfers": "meshwright.lowering.transfer.transfer:Transfers",
    "connect_stages": "meshwright.lowering.transfer.stage_edge:ConnectStages",
    "clip_gradients": "meshwright.lowering.sharding.gradient_norm:ClipGradients",
    "correct_routers": "meshwright.lowering.sharding.router_correction:CorrectRouters",
    "share_choices": "meshwright.lowering.segment.shared_choices:SharedChoices",
    "post_validation": "meshwright.lowering.sharding.gradient_norm:PostValidate",
    "place_receives": "meshwright.lowering.transfer.receive_place:PlaceReceives",
    "canonical_reduction": "meshwright.lowering.sharding.canonical:CanonicalReduction",
    "offload_optimizer": "meshwright.lowering.memory.offload:OffloadOptimizer",
    "unshard": "meshwright.lowering.sharding.gather:Unshard",
    "gather_parameters": "meshwright.lowering.sharding.gather:GatherParameters",
    "split_vocabulary": "meshwright.lowering.vocabulary.split:SplitVocabulary",
}
DETECTED = "this computer"  # the cluster that is detected, not read
NUM_CHUNKS = 2  # of a user's schedule that takes chunks and does not say how many


def names(kind: str) -> tuple[str, ...]:
    """Every name of a kind ("models", "schedules", ...), sorted. Raises UnknownNameError."""
    listed: Mapping[str, Callable[[], tuple[str, ...]]] = {
        "models": model_presets,
        "devices": device_presets,
        "clusters": _clusters,
        "schedules": lambda: tuple(sorted({*own_schedules(), *offered("schedule")})),
        "passes": lambda: tuple(sorted(PASSES)),
        "systems": lambda: tuple(sorted(cards())),
    }
    if kind in SLOT_KINDS:
        return tuple(sorted(slot_names(SLOT_KINDS[kind])))
    if kind not in listed:
        raise UnknownNameError("list", kind, KINDS)
    return listed[kind]()


def find_schedule(name: str | Schedule | Callable[..., Any]) -> Schedule:
    """The schedule of that name: of the package, of an installed package, or ``./mine.py:wave`` from a file; or what a
    function of counts is, decorated or bare.

    Raises:
        UnknownNameError: nothing of that name; lists near matches.
        SpecError: the file cannot be imported, or has no such function.
    """
    if isinstance(name, Schedule):
        return name
    if not isinstance(name, str):
        return _as_schedule(name, getattr(name, "__name__", "function"))
    if Reference.of(name).names_code:
        return _from_file(name)
    known = own_schedules()
    if name in known:
        return known[name]
    if Reference.of(name).name in filled_by_systems()["schedule"]:
        return _as_schedule(filler("schedule", name), name)
    others = offered("schedule")
    if name not in others:
        hint = "a file of your own is ./mine.py:FUNCTION"
        raise UnknownNameError("schedule", name, {*known, *others}, next=hint)
    return _as_schedule(guarded(others[name].load, f"entry point {name}"), name)


def _pass_class(name: str) -> Any:
    """What makes a pass of that name. Raises UnknownNameError."""
    if name not in PASSES:
        raise UnknownNameError("pass", name, PASSES)
    module, _, attribute = PASSES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def find_pass(name: str, **options: Any) -> Any:
    """A lowering pass by name, made with its options.

    Raises:
        UnknownNameError: no pass of that name.
        SpecError: it has no such option.
    """
    make = _pass_class(name)
    try:
        return make(**options)
    except TypeError:
        allowed = ", ".join(inspect.signature(make).parameters) or "no options"
        raise SpecError(f"pass {name} was given {', '.join(options)}", allowed=allowed) from None


def pass_summary(name: str) -> str:
    """First paragraph of what a pass says it does."""
    return " ".join((inspect.getdoc(_pass_class(name)) or "").partition("\n\n")[0].split())


def _from_file(reference: str) -> Schedule:
    """The schedule behind ``./mine.py:wave``, or behind ``./mine.py`` where the file has one function only."""
    path, made = Path(Reference.of(reference).file).expanduser(), filler("schedule", reference)
    return _as_schedule(made, f"{path.name}:{getattr(made, '__name__', type(made).__name__)}", path)


def _as_schedule(function: Any, name: str, path: Path | None = None) -> Schedule:
    """A schedule from what a file or an entry point gave: a Schedule, or a function, decorated or bare."""
    if isinstance(function, Schedule):
        return function
    if not callable(function):
        raise SpecError(f"{name} is a {type(function).__name__}", allowed="a function of counts")
    made = next((known for known in registered().values() if known.function is function), None)
    if made is None:
        made = Schedule(name, function, _chunks_of(function), summary=_summary(function))
        made = replace(made, skips_stages=getattr(function, "skips_stages", False))
    safe = guard_calls(made.function, name, path)
    return replace(made, function=safe)


def _chunks_of(function: Callable[..., Any]) -> int:
    """Stages a device: the default of the third argument, 2 where it has none, 1 where there is no third."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 3:
        return 1
    default = parameters[2].default
    return default if isinstance(default, int) else NUM_CHUNKS


def _clusters() -> tuple[str, ...]:
    """The usual node of every device, and this computer."""
    from meshwright.specs.cluster.device import usual_node

    nodes = (f"{usual_node(name).num_devices}x{name}" for name in device_presets() if name != "cpu")
    return (*sorted(nodes), DETECTED)


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
