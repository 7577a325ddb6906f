"""Data that anybody may have written: what the readers cannot end is an error like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.specs.data_text import json_of, toml_of
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.specs.toml_table import TomlTable
from meshwright.specs.units import parse_bytes

DEEP = 100_000


def test_data_are_read_as_ever() -> None:
    assert json_of('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]} and json_of(b"[true]") == [True]
    assert toml_of("a = [1, 2]") == {"a": [1, 2]}


@pytest.mark.parametrize("text", ["[" * DEEP, '{"a":' * DEEP, "[" * DEEP + "]" * DEEP, "{", ""])
def test_json_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        json_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP,
        "a = " + "{b=" * DEEP,
        "a",
        "a = ",
        "a = 1\na = 2",
        "a" + ".a" * DEEP + " = 1",
        "[" + "a." * DEEP + "a]",
    ],
)
def test_toml_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        toml_of(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "[" * DEEP),
        ("plan.toml", "a = " + "[" * DEEP),
        ("profile.json", '"meshwright-profile"' + "[" * DEEP),
    ],
)
def test_files_that_are_nested_too_deep_are_refused_by_name(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(MeshwrightError) as raised:
        mw.load(path)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("value", ['"x"', '"1e400x"', '"\\u0000"'])
def test_a_quantity_that_a_parser_of_python_does_not_take_is_the_users(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"theta = {value}")
    table = TomlTable.read(tmp_path / "a.toml", SpecError)
    with pytest.raises(SpecError, match="theta"):
        table.quantity("theta", float)
    with pytest.raises(SpecError, match="theta"):
        table.quantity("theta", parse_bytes)
