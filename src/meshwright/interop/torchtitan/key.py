"""The keys of a torchtitan file, each handed out once with what it means; what is left over is sorted at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.interop.imported import Draft, Option
from meshwright.interop.option_set import flat
from meshwright.interop.torchtitan.option import IRRELEVANT, IRRELEVANT_TABLES, NOT_IN_A_PLAN, RENAMED
from meshwright.specs.error import PlanError

QUANTIZED_TABLES = ("quantize", "float8", "mx")


class TomlKeys:
    """The keys of a file as "table.key", each read once and noted."""

    def __init__(self, draft: Draft, tables: Mapping[str, Any]) -> None:
        self.draft, self.values, self.names = draft, {}, {}
        self._is_read: set[str] = set()
        for name, value in flat(tables):
            known = RENAMED.get(name, name)
            self.values[known], self.names[known] = value, name

    def read(self, name: str, meaning: str, default: Any = None) -> Any:
        """The value of a key; `default` where it is not there. A value of another kind than `default` is refused."""
        if name not in self.values:
            return default
        value = self.values[name]
        kinds = (int, float) if isinstance(default, float) else type(default)
        if default is not None and (
            not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool)
        ):
            raise PlanError(
                f"{self.draft.where}: {self.names[name]} is {value!r}",
                allowed=f"a value such as {default!r}",
            )
        self._is_read.add(name)
        self.draft.understood.append(
            Option(self.names[name], str(value), meaning.replace("{value}", str(value)))
        )
        return value

    def count(self, name: str, meaning: str, default: int) -> int:
        """`read` for a whole number from 1, or the default."""
        value: int = self.read(name, meaning, default)
        if value < 1 and value != default:
            raise PlanError(
                f"{self.draft.where}: {self.names[name]} is {value}",
                allowed=f"a whole number from 1, or {default}",
            )
        return value

    def reject(self, name: str, reason: str) -> None:
        """A key that asks for what a plan cannot say."""
        self._is_read.add(name)
        self.draft.unknown.append(Option(self.names[name], str(self.values[name]), reason))

    def _is_unconverted(self, name: str) -> bool:
        """Keys of a number format that no converter asks for do nothing."""
        converters = str(self.values.get("model.converters", ""))
        table = name.rpartition(".")[0]
        return (
            table.startswith(QUANTIZED_TABLES)
            and table not in converters
            and table.split(".")[-1] not in converters
        )

    def sort_rest(self) -> None:
        """Every key that nobody read, into one of the other lists."""
        for name, value in self.values.items():
            if name in self._is_read:
                continue
            shown = (self.names[name], str(value))
            topic = IRRELEVANT.get(name) or IRRELEVANT_TABLES.get(name.split(".")[0])
            is_off = value in (False, "", [], None) or self._is_unconverted(name)
            reason = next(
                (why for key, why in NOT_IN_A_PLAN.items() if name == key or name.startswith(key + ".")), ""
            )
            if topic or (is_off and (reason or self._is_unconverted(name))):
                self.draft.irrelevant.append(Option(*shown, topic or "switched off"))
            else:
                self.draft.unknown.append(Option(*shown, reason or "not known"))
