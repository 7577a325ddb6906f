"""SavedServing: a plan that serves as a TOML file, with what it serves and on what.

schema = 1
kind = "serving"              # a plan that trains has no kind
model = "llama-3.1-70b"       # a preset, a folder or an id of the hub
cluster = "1x8xH100"
dtype = "bfloat16"
tp = 4                        # then the other degrees of a replica, and every field of `ServingPlan`
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.data_text import toml_of
from meshwright.specs.error import PlanError
from meshwright.specs.printable import printable
from meshwright.specs.toml_table import TomlTable
from meshwright.specs.whole_file import whole_file

SCHEMA, KIND = 1, "serving"
HEAD = ("model", "cluster", "dtype")
LAYOUT = tuple(each.name for each in fields(ReplicaLayout))
OWN = tuple(each.name for each in fields(ServingPlan) if each.name != "layout")


@dataclass(frozen=True)
class SavedServing:
    """Args:
    model, cluster: as they were named.
    dtype: of linear layers.
    plan: how.
    """

    model: str
    cluster: str
    dtype: str
    plan: ServingPlan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it. Raises PlanError where the file cannot be written."""
        head = {"schema": SCHEMA, "kind": KIND, **{name: getattr(self, name) for name in HEAD}}
        layout, own = asdict(self.plan.layout), {name: getattr(self.plan, name) for name in OWN}
        title = printable(f"{self.model} on {self.cluster}: {self.plan.name}")
        try:
            with whole_file(path) as target:
                target.write_text(f"# {title}\n{tomli_w.dumps({**head, **layout, **own})}", encoding="utf-8")
        except OSError as error:
            raise PlanError(f"{path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedServing:
        """Read one. Raises PlanError, UnknownNameError with one clear message."""
        table = TomlTable.read(Path(path), PlanError)
        table.check_keys(("schema", "kind", *HEAD, *LAYOUT, *OWN))
        table.check_schema(SCHEMA)
        if table.text("kind") != KIND:
            raise PlanError(f"{path} is of kind {table.text('kind')!r}", allowed=repr(KIND))
        layout = ReplicaLayout(**{name: table.integer(name, 1) for name in LAYOUT})
        usual: dict[str, Any] = {each.name: each.default for each in fields(ServingPlan)}
        own: dict[str, Any] = {
            name: table.integer(name, usual[name])
            if isinstance(usual[name], int)
            else table.text(name, usual[name])
            for name in OWN
        }
        return cls(
            table.text("model"), table.text("cluster"), table.text("dtype"), ServingPlan(layout, **own)
        )


def is_serving_plan(path: str | os.PathLike[str]) -> bool:
    """Does a file say that it is one? What cannot be read is none: who reads plans of training says what is wrong."""
    try:
        return toml_of(Path(path).read_text(encoding="utf-8")).get("kind") == KIND
    except (OSError, ValueError):
        return False
