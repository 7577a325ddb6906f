"""Reading a TOML table strictly: unknown keys, missing keys and wrong types are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.specs.data_text import toml_of
from meshwright.specs.error import MeshwrightError, near_matches
from meshwright.specs.record import check_keys

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list"}


@dataclass(frozen=True)
class TomlTable:
    """One table of a file: `where` is the file and table as the user knows them, `error` what to raise."""

    values: Mapping[str, Any]
    where: str
    error: type[MeshwrightError]

    @classmethod
    def read(cls, path: Path, error: type[MeshwrightError]) -> TomlTable:
        """Parse a file; raises `error` with one clear message when it is missing, unreadable or not TOML."""
        try:
            return cls(toml_of(path.read_text(encoding="utf-8")), str(path), error)
        except FileNotFoundError:
            raise error(f"there is no file {path}", next="check the path") from None
        except ValueError as found:
            raise error(
                f"{path} is not a TOML file: {found}", next="write it again or repair that place"
            ) from None
        except OSError as found:
            raise error(f"{path} cannot be read: {found.strerror}", next="check the path") from None

    def check_keys(self, known: Iterable[str]) -> None:
        """Refuse keys that mean nothing, with near matches."""
        check_keys(self.values, list(known), self.where, self.error)

    def check_schema(self, supported: int) -> int:
        """The file's schema version; a newer one than `supported` is refused with the version it needs."""
        schema = self.integer("schema")
        if schema > supported:
            raise self.error(
                f"{self.where} has schema {schema}",
                allowed=f"schema 1 to {supported}",
                next=f"install a meshwright that reads schema {schema}",
            )
        if schema < 1:
            raise self.error(f"{self.where} has schema {schema}", allowed=f"schema 1 to {supported}")
        return schema

    def text(self, key: str, default: str | None = None) -> str:
        """A text; missing takes `default`, and is refused where there is none."""
        value: str = self._typed(key, str, default)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value: int = self._typed(key, int, default)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value: bool = self._typed(key, bool, default)
        return value

    def items(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """A list of anything."""
        value: list[Any] = self._typed(key, list, default)
        return value

    def quantity(self, key: str, parse: Callable[[Any], float], default: float | None = None) -> float:
        """A number in SI units or a text with its unit, read by one of the functions of `units`."""
        if key not in self.values and default is not None:
            return default
        value = self._present(key)
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise self.error(f"{self.where}: {key!r} is {value!r}", allowed="a number or a text with a unit")
        try:
            return parse(value)
        except MeshwrightError as found:
            raise self.error(f"{self.where}: {key!r}: {found.given}", allowed=found.allowed) from None
        except (ValueError, OverflowError):  # a parser that is Python's own, such as float
            raise self.error(f"{self.where}: {key!r} is {value!r}", allowed="a finite number") from None

    def table(self, key: str) -> TomlTable:
        """A table inside this one; missing is refused."""
        return self._inner(key, self._present(key), f"{self.where}: [{key}]")

    def tables(self, key: str) -> tuple[TomlTable, ...]:
        """An array of tables; missing is empty."""
        entries = self.items(key, [])
        return tuple(
            self._inner(key, entry, f"{self.where}: [[{key}]] {index}") for index, entry in enumerate(entries)
        )

    def _inner(self, key: str, value: object, where: str) -> TomlTable:
        if not isinstance(value, dict):
            raise self.error(f"{self.where}: {key!r} is {value!r}", allowed=f"a table [{key}]")
        return TomlTable(value, where, self.error)

    def _present(self, key: str) -> Any:
        if key not in self.values:
            near = near_matches(key, self.values)
            hint = f"did you write it as {near[0]!r}?" if near else f"add {key!r}"
            raise self.error(f"{self.where}: key {key!r} is missing", next=hint)
        return self.values[key]

    def _typed(self, key: str, kind: type, default: Any) -> Any:
        if key not in self.values and default is not None:
            return default
        value = self._present(key)
        if type(value) is not kind:
            raise self.error(f"{self.where}: {key!r} is {value!r}", allowed=_TYPE_NAMES[kind])
        return value
