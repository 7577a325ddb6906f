"""Finds models, devices, clusters, schedules, passes and systems by name, lazily; and schedules in a user's own file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster.device import device_presets
from meshwright.specs.config.source import model_presets
from meshwright.specs.error import MeshwrightError, SpecError, UnknownNameError

ENTRY_POINTS = "meshwright.schedules"  # the group in which installed packages offer schedules
KINDS = ("models", "devices", "clusters", "schedules", "passes", "systems")
PASSES: Mapping[str, str] = {
    "recompute": "meshwright.lowering.memory.recompute:Recompute",
    "split_backward": "meshwright.lowering.split_backward:SplitBackward",
    "reduce_gradients": "meshwright.lowering.sharding.reduction:ReduceGradients",
    "optimizer_step": "meshwright.lowering.sharding.reduction:OptimizerStep",
    "transfers": "meshwright.lowering.transfer.transfer:Transfers",
    "connect_stages": "meshwright.lowering.transfer.stage_edge:ConnectStages",
    "clip_gradients": "meshwright.lowering.sharding.gradient_norm:ClipGradients",
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
        "schedules": lambda: tuple(sorted({*_own_schedules(), *_offered()})),
        "passes": lambda: tuple(sorted(PASSES)),
        "systems": lambda: tuple(sorted(system_files())),
    }
    if kind not in listed:
        raise UnknownNameError("list", kind, KINDS)
    return listed[kind]()


def find_schedule(name: str | Schedule) -> Schedule:
    """The schedule of that name: of the package, of an installed package, or ``./mine.py:wave`` from a file.

    Raises:
        UnknownNameError: nothing of that name; lists near matches.
        SpecError: the file cannot be imported, or has no such function.
    """
    if isinstance(name, Schedule):
        return name
    if _is_file(name):
        return _from_file(name)
    known = _own_schedules()
    if name in known:
        return known[name]
    offered = _offered()
    if name not in offered:
        hint = "a file of your own is ./mine.py:FUNCTION"
        raise UnknownNameError("schedule", name, {*known, *offered}, next=hint)
    return _as_schedule(_guarded(offered[name].load, f"entry point {name}"), name)


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


@cache
def system_files() -> Mapping[str, Path]:
    """Published systems: name -> its card; nothing is imported."""
    root = Path(__file__).with_name("systems")
    return {path.parent.name: path for path in sorted(root.glob("*/*/card.py"))}


def import_file(path: Path) -> ModuleType:
    """A user's Python file as a module of a private name. Raises SpecError with the line that failed."""
    if not path.is_file():
        raise SpecError(f"there is no file {path}", allowed="the path of a Python file")
    private = "_meshwright_user_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(private, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", allowed="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module  # dataclasses and typing look their module up by name
    try:
        _guarded(lambda: spec.loader.exec_module(module), str(path), path)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[private]
        raise
    return module


def _is_file(name: str) -> bool:
    return name.partition(":")[0].endswith(".py")


def _from_file(reference: str) -> Schedule:
    """The schedule behind ``./mine.py:wave``, or behind ``./mine.py`` where the file has one function only."""
    file, _, wanted = reference.partition(":")
    path = Path(file).expanduser()
    module = import_file(path)
    functions = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    if not wanted and len(functions) == 1:
        wanted = next(iter(functions))
    if wanted not in functions:
        hint = f"write {file}:FUNCTION; it takes counts and returns one list of computes a device"
        raise UnknownNameError(f"function in {path.name}", wanted, functions, next=hint)
    return _as_schedule(functions[wanted], f"{path.name}:{wanted}", path)


def _as_schedule(function: Any, name: str, path: Path | None = None) -> Schedule:
    """A schedule from what a file or an entry point gave: a Schedule, or a function, decorated or bare."""
    if isinstance(function, Schedule):
        return function
    if not callable(function):
        raise SpecError(f"{name} is a {type(function).__name__}", allowed="a function of counts")
    made = next((known for known in registered().values() if known.function is function), None)
    if made is None:
        made = Schedule(name, function, _chunks_of(function), summary=_summary(function))
    safe = _guard_calls(made.function, name, path)
    return replace(made, function=safe)


def _chunks_of(function: Callable[..., Any]) -> int:
    """Stages a device: the default of the third argument, 2 where it has none, 1 where there is no third."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 3:
        return 1
    default = parameters[2].default
    return default if isinstance(default, int) else NUM_CHUNKS


def _guard_calls(function: Callable[..., Any], name: str, path: Path | None) -> Callable[..., Any]:
    """The same function; what goes wrong inside it is told as the user's, with file and line."""

    def call(*counts: int) -> Any:
        return _guarded(lambda: function(*counts), f"{name}{counts}", path)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _guarded(run: Callable[[], Any], what: str, path: Path | None = None) -> Any:
    """Run code that is not ours; its errors become ours, with the line in `path` where they rose."""
    try:
        return run()
    except MeshwrightError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            f"line {frame.lineno}: "
            for frame in frames
            if path and Path(frame.filename).resolve() == path.resolve()
        ]
        if isinstance(error, SyntaxError):
            own = [f"line {error.lineno}: "]
        raise SpecError(
            f"{what} failed: {own[-1] if own else ''}{type(error).__name__}: {error}",
            next="correct the file; --debug shows the whole traceback",
        ) from error


@cache
def _own_schedules() -> Mapping[str, Schedule]:
    """The schedules of the package (what a user's file registers later is found through its file)."""
    import meshwright.schedules

    root = meshwright.schedules.__name__
    return {name: made for name, made in registered().items() if made.function.__module__.startswith(root)}


@cache
def _offered() -> Mapping[str, Any]:
    """Entry points by name, not yet loaded."""
    from importlib.metadata import entry_points  # reads the metadata of every installed package

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _clusters() -> tuple[str, ...]:
    """The usual node of every device, and this computer."""
    from meshwright.specs.cluster.device import usual_node

    nodes = (f"{usual_node(name).num_devices}x{name}" for name in device_presets() if name != "cpu")
    return (*sorted(nodes), DETECTED)


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
