"""Plans as TOML files: what a reader wants to know first stands first, what is as usual is left out.

schema = 6
cluster = "8xh100"
num_devices = 8
pp = 2                        # then every other field of `Plan` that is not at its default
layers_per_stage = [16, 16]

[model]                       # a model of the package by its name; another one by its fields, each kind of block once
preset = "llama-3.1-8b"
digest = "0123456789abcdef"   # of its dimensions: a file that was changed by hand, or means another model, is refused

[workload]                    # fields that are tables, then those that are lists of tables
global_batch = 64

Schema 5 had a kind of context parallelism of its own for rings of contiguous tokens, which is a layout now.
Schemas 1 to 4 had the fields in sections, and models by flat dimensions (`specs.model.dimension`); they are read as well.
Schema 3 did not know recompute_blocks, schema 2 had fewer keys, schema 1 knew dense models only: what a file leaves out is
as in `Plan`, and in a dense model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from meshwright.specs.config.source import model_presets, preset_model
from meshwright.specs.error import MeshwrightError, PlanError, UnknownNameError
from meshwright.specs.model.dimension import flat_digest
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.record import plain, record
from meshwright.specs.toml_table import TomlTable
from meshwright.specs.whole_file import whole_file

PLAN_SCHEMA = 6
FIRST_SCHEMA_OF_LAYOUTS = 6
CONTIGUOUS_RING = "ring_contiguous"  # a value of context in schemas before that
FIRST_SCHEMA_OF_BLOCKS = 5
OLD_SECTIONS = ("parallel", "pipeline", "memory", "software")
FIRST_KEYS = (
    *("schema", "cluster", "num_devices", "pp", "dp", "tp", "cp", "ep", "schedule", "num_chunks"),
    *("layers_per_stage", "microbatch_size"),
)
HEADER = "# {model} on {cluster}: {degrees}. What is not said here is as in meshwright.Plan."

AnyPlan = TypeVar("AnyPlan")


def plan_table(plan: Any, *, complete: bool = False) -> dict[str, Any]:
    """The plan as plain values, in the order of its file. `complete`: also the fields at their defaults."""
    said = {"schema": PLAN_SCHEMA, **plain(plan, complete=complete), "model": _model_table(plan.model)}
    return {key: said[key] for key in sorted(said, key=_rank)}


def plan_text(plan: Any) -> str:
    """The plan as TOML text."""
    header = HEADER.format(model=plan.model.name, cluster=plan.cluster, degrees=plan.product_text())
    return "\n".join((header.replace("\n", " "), *_lines(plan_table(plan)), ""))


def save_plan(plan: Any, path: str | os.PathLike[str]) -> None:
    """Write the plan whole or not at all. Raises PlanError where the file cannot be written."""
    target, text = Path(path), plan_text(plan)
    try:
        with whole_file(target) as file:
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{target} cannot be written: {error.strerror}", next="choose another path") from None


def read_plan(kind: type[AnyPlan], path: str | os.PathLike[str]) -> AnyPlan:
    """A plan of the class `kind`. Raises PlanError naming file, key, what is allowed and what to do."""
    table = TomlTable.read(Path(path), PlanError)
    schema = table.check_schema(PLAN_SCHEMA)
    try:
        said = dict(table.values) if schema >= FIRST_SCHEMA_OF_BLOCKS else _without_sections(table)
        if schema < FIRST_SCHEMA_OF_LAYOUTS and said.get("context") == CONTIGUOUS_RING:
            said |= {"context": "ring", "token_layout": "contiguous"}
        model = dict(table.table("model").values)
        read = _model if schema >= FIRST_SCHEMA_OF_BLOCKS else _flat_model
        rest = {key: value for key, value in said.items() if key not in ("schema", "model")}
        return record(kind, rest, table.where, PlanError, model=read(model))
    except MeshwrightError as error:
        where = "" if error.given.startswith(table.where) else f"{table.where}: "
        raise PlanError(f"{where}{error.given}", allowed=error.allowed, next=error.next) from None


def _rank(key: str) -> int:
    return FIRST_KEYS.index(key) if key in FIRST_KEYS else len(FIRST_KEYS)


def _lines(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """TOML, lists on one line: first what is no table."""
    inner = {key: value for key, value in table.items() if _holds_tables(value)}
    yield from (f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in inner)
    for key, value in inner.items():
        path = f"{prefix}{_key(key)}"
        for entry in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{path}]]" if isinstance(value, list) else f"[{path}]")
            yield from _lines(entry, f"{path}.")


def _holds_tables(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return isinstance(value, dict) or (is_list and all(isinstance(each, dict) for each in value))


def _key(key: str) -> str:
    import tomli_w  # only here: the rest of the package reads TOML with the standard library

    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _value(value: Any) -> str:
    import tomli_w

    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):  # among other values of a list
        return f"{{{', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    return tomli_w.dumps({"key": value}).removeprefix("key = ").removesuffix("\n")


def _model_table(model: ModelSpec) -> dict[str, Any]:
    """A preset by its name with the fields that are not as there; another model by all of its fields."""
    preset = preset_model(model.name)
    if preset is None or preset.blocks != model.blocks:
        return {"digest": model.digest, **model.to_dict()}
    names = [
        field.name for field in fields(model) if getattr(model, field.name) != getattr(preset, field.name)
    ]
    if any(getattr(model, name) is None for name in names):  # a file has no word for it
        return {"digest": model.digest, **model.to_dict()}
    changes = {name: plain(getattr(model, name)) for name in names}
    return {"preset": model.name, "digest": model.digest, **changes}


def _model(said: dict[str, Any]) -> ModelSpec:
    digest, name = said.pop("digest", None), said.pop("preset", None)
    if name is None:
        return _known_again(ModelSpec.from_dict(said, "[model]"), digest)
    preset = preset_model(name) if isinstance(name, str) else None
    if preset is None:
        raise UnknownNameError("model", str(name), model_presets())
    return _known_again(
        ModelSpec.from_dict({**preset.to_dict(), **said}, "[model]") if said else preset, digest
    )


def _known_again(model: ModelSpec, digest: str | None, found: str = "") -> ModelSpec:
    found = found or model.digest
    if digest not in (None, found):
        raise PlanError(
            f"[model]: the dimensions of {model.name} hash to {found}, the file says {digest}",
            allowed="the model that the plan was made for",
            next="make the plan again, or remove 'digest' if the change was meant",
        )
    return model


def _flat_model(said: dict[str, Any]) -> ModelSpec:
    """Of schemas 1 to 4. The digest is of what stands in the file: also the width of an MLP that no block has."""
    digest, name, architecture = said.pop("digest", None), said.get("name", ""), said.get("architecture", "")
    model = ModelSpec.from_dict(said)
    return _known_again(model, digest, flat_digest(name, said, architecture))


def _without_sections(table: TomlTable) -> dict[str, Any]:
    """Of schemas 1 to 4: the fields of all sections beside the others."""
    found = {key: value for key, value in table.values.items() if key not in OLD_SECTIONS}
    for section in OLD_SECTIONS:
        found |= table.table(section).values if section in table.values else {}
    return found
