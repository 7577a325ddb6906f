"""Plans as TOML files: what is written, what is read, and what is refused.

schema = 4
cluster = "2xcpu"
num_devices = 2

[model]                  # name, digest and every dimension: the file needs no other to be understood
[workload]               # global_batch, sequence_length, lengths, num_tokens
[parallel]               # pp, dp, tp, cp, ep, sequence_parallel, vocabulary, overlap, mesh_order, device_order
[pipeline]               # schedule, num_chunks, layers_per_stage, microbatch_size, split_backward
[memory]                 # recompute, recompute_blocks, sharding, sharding_degree, and formats: dtype, float8, ...
[software]               # attention, software
[[passes]]               # name, and a table of options

Schema 3 did not know recompute_blocks: all blocks followed recompute. Schema 2 had fewer keys; what a file leaves out is
as in `Plan`. Schema 1 knew dense models only: its [model] lacks `model_digest.ADDED_FIELDS`, which are then as in a dense
model, and its digest stays valid.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from meshwright.specs.error import MeshwrightError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.toml_table import TomlTable

PLAN_SCHEMA = 4
_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "parallel": (
        "pp", "dp", "tp", "cp", "ep", "sequence_parallel", "vocabulary", "overlap", "mesh_order", "device_order",
        "placement",
    ),
    "pipeline": ("schedule", "num_chunks", "layers_per_stage", "microbatch_size", "split_backward"),
    "memory": (
        "recompute", "recompute_blocks", "sharding", "sharding_degree", "dtype", "float8", "reduction_dtype",
        "master_dtype",
    ),
    "software": ("attention", "software", "variant"),
}  # fmt: skip
_TOP = ("schema", "cluster", "num_devices", "model", "workload", *_SECTIONS, "passes")
_WORKLOAD_KEYS = ("global_batch", "sequence_length", "lengths", "num_tokens")


def plan_text(plan: Plan) -> str:
    """The plan as TOML text."""
    import tomli_w  # only here: the rest of the package reads TOML with the standard library

    return tomli_w.dumps(_to_dict(plan))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan whole or not at all. Raises PlanError where the file cannot be written."""
    target, text = Path(path), plan_text(plan)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, target)
    except OSError as error:
        raise PlanError(f"{target} cannot be written: {error.strerror}", next="choose another path") from None


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan. Raises PlanError naming file, key, what is allowed and what to do."""
    table = TomlTable.read(Path(path), PlanError)
    table.check_schema(PLAN_SCHEMA)
    table.check_keys(_TOP)
    try:
        return _from_table(table)
    except PlanError as error:
        if error.given.startswith(table.where):
            raise
        raise PlanError(f"{table.where}: {error.given}", allowed=error.allowed, next=error.next) from None
    except MeshwrightError as error:
        raise PlanError(f"{table.where}: {error}") from None


def _to_dict(plan: Plan) -> dict[str, Any]:
    workload = {
        "global_batch": plan.workload.global_batch,
        "sequence_length": plan.workload.sequence_length,
        "lengths": [list(pair) for pair in plan.workload.lengths],
    }
    if plan.workload.num_tokens is not None:
        workload["num_tokens"] = plan.workload.num_tokens
    content: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "cluster": plan.cluster,
        "num_devices": plan.num_devices,
        "model": {"digest": plan.model_digest, **plan.model.to_dict()},
        "workload": workload,
    }
    for section, names in _SECTIONS.items():
        content[section] = {name: _plain(getattr(plan, name)) for name in names}
    content["passes"] = [{"name": each.name, "options": dict(each.options)} for each in plan.passes]
    return content


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _from_table(table: TomlTable) -> Plan:
    choices: dict[str, Any] = {}
    for section, names in _SECTIONS.items():
        if section not in table.values:
            continue
        inner = table.table(section)
        inner.check_keys(names)
        choices.update({name: _field(inner, name) for name in names if name in inner.values})
    if "layers_per_stage" not in choices:
        raise PlanError(f"{table.where}: [pipeline]: key 'layers_per_stage' is missing", next="add it")
    return Plan(
        model=_model(table.table("model")),
        cluster=table.text("cluster"),
        num_devices=table.integer("num_devices"),
        workload=_workload(table.table("workload")),
        passes=tuple(_pass(entry) for entry in table.tables("passes")),
        **choices,
    )


def _field(table: TomlTable, name: str) -> Any:
    """A field of Plan with the type its default has."""
    if name in ("layers_per_stage", "recompute_blocks", "device_order"):
        return table.integers(name)
    if name in ("mesh_order", "overlap"):
        return tuple(str(entry) for entry in table.items(name))
    default = Plan.__dataclass_fields__[name].default
    if isinstance(default, bool):
        return table.flag(name)
    return table.integer(name) if isinstance(default, int) else table.text(name)


def _model(table: TomlTable) -> ModelSpec:
    known = fields(ModelSpec)
    table.check_keys(("digest", *(field.name for field in known)))
    for field in known:
        if field.default is MISSING and field.name not in table.values:
            raise PlanError(f"{table.where}: key {field.name!r} is missing", next=f"add {field.name!r}")
        if field.name in table.values:
            _check_type(table, field.name, str(field.type))
    values = {key: value for key, value in table.values.items() if key != "digest"}
    model = ModelSpec.from_dict(values)
    digest = table.text("digest", model.digest)
    if digest != model.digest:
        raise PlanError(
            f"{table.where}: the dimensions of {model.name} hash to {model.digest}, the file says {digest}",
            allowed="the model that the plan was made for",
            next="make the plan again, or remove 'digest' if the change was meant",
        )
    return model


def _check_type(table: TomlTable, name: str, declared: str) -> None:
    """The value of a model's field has the declared type."""
    if declared == "int":
        table.integer(name)
    elif declared == "bool":
        table.flag(name)
    elif declared.startswith("tuple[str"):
        table.items(name)
    elif declared.startswith("tuple"):
        table.integers(name)
    elif declared == "float":
        table.quantity(name, float)
    else:
        table.text(name)


def _workload(table: TomlTable) -> Workload:
    table.check_keys(_WORKLOAD_KEYS)
    lengths = []
    for pair in table.items("lengths", []):
        is_pair = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int
        if not is_pair or isinstance(pair[1], bool) or not isinstance(pair[1], (int, float)):
            raise PlanError(f"{table.where}: 'lengths' has {pair!r}", allowed="pairs [tokens, share]")
        lengths.append((pair[0], float(pair[1])))
    return Workload(
        global_batch=table.integer("global_batch"),
        sequence_length=table.integer("sequence_length"),
        lengths=tuple(lengths),
        num_tokens=table.integer("num_tokens") if "num_tokens" in table.values else None,
    )


def _pass(table: TomlTable) -> PassOption:
    table.check_keys(("name", "options"))
    options = table.table("options").values if "options" in table.values else {}
    return PassOption(table.text("name"), dict(options))
