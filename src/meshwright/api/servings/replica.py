"""A replica's process, `python -m meshwright.api.servings.replica`: it serves a model to a front, which tells it what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from meshwright.api.servings.adapter_options import AdapterOptions
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.servings.serving import ServerOptions, serve
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.replica_entry import Told, answer_front
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.specs.slot import TRUST

GROUPS = {
    "choice": EngineChoice,
    "server": ServerOptions,
    "limits": Limits,
    "policy": ContinuousBatching,
    "bounds": ServerLimits,
}
Group = TypeVar("Group")


def made(kind: type[Group], said: Mapping[str, Any]) -> Group:
    """A dataclass of what `said_of` says of it: paths are texts in JSON."""
    hints = get_type_hints(kind)
    return kind(
        **{name: Path(value) if "Path" in str(hints[name]) else value for name, value in said.items()}
    )


def said_of(group: Any) -> dict[str, Any]:
    """What differs from the defaults, in JSON."""
    values = {each.name: (getattr(group, each.name), each.default) for each in fields(group)}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, (value, default) in values.items()
        if default is MISSING or value != default
    }


def told_of(model: str | Path, groups: Mapping[str, Any], adapting: AdapterOptions) -> dict[str, Any]:
    """What `serve_front` is told, beside its socket, of options by the names of `GROUPS`."""
    return {
        "model": str(model),
        "trusts": TRUST.is_given,
        "adapters": {
            "adapters": [(name, str(folder)) for name, folder in adapting.adapters],
            "folder": None if adapting.folder is None else str(adapting.folder),
            "most": adapting.most,
        },
        **{name: said_of(groups[name]) for name in GROUPS},
    }


def serve_front(told: Told, announce: Callable[[int], None]) -> Told:
    """Serve the model on the socket that the front names."""
    TRUST.is_given = told["trusts"]
    groups: dict[str, Any] = {name: made(kind, told[name]) for name, kind in GROUPS.items()}
    server = replace(groups["server"], socket=Path(told["path"]))
    said = told["adapters"]
    adapting = AdapterOptions(
        tuple((name, Path(folder)) for name, folder in said["adapters"]),
        None if said["folder"] is None else Path(said["folder"]),
        said["most"],
    )
    found = serve(
        told["model"],
        **{**groups, "server": server},
        adapting=adapting,
        announce=lambda _, num_tokens: announce(num_tokens),
    )
    return {name: value for name, value in found.items() if name != "experts"}  # a front sums numbers


if __name__ == "__main__":
    sys.exit(answer_front(serve_front))
