"""A parameter that is a dataclass: its options, what is made of what was given, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli.frame.option_group import group_from, group_of, options_in
from meshwright.specs.error import SpecError
from meshwright.specs.option import flag_of, option, options_of, words_of
from meshwright.specs.units import parse_bytes


@dataclass(frozen=True)
class Kept:
    """Options of every kind."""

    folder: Path = option(MISSING, "Where.", "--kept -k")
    every: int = option(3, "Steps.", least=1)
    limit_bytes: float | None = option(None, "At most.", "--limit", parse=parse_bytes)
    words: tuple[str, ...] = option((), "Words.", parse=words_of)
    is_masked: bool = option(True, "Unmasked.", "--no-mask")
    is_loud: bool = option(False, "Loud.", "--loud")
    layered: bool | None = option(None, "Layers.")
    ours: str = "python alone"


ABSENT: Mapping[str, Any] = {
    each.name: parameter.default
    for (each, _), parameter in zip(options_of(Kept), options_in(Kept, ""), strict=True)
}


def made(default: Any = inspect.Parameter.empty, **given: Any) -> Any:
    return group_from(Kept, default, {**ABSENT, **given}, "")


def names(told: Any) -> list[str]:
    """The names on the command line; typer takes the first one as a default until it sees the parameter."""
    return [told.default, *told.param_decls]


def test_every_option_is_there_under_its_name_with_its_default_in_the_help() -> None:
    found = {each.name: each.annotation.__metadata__[0] for each in options_in(Kept, "")}
    assert "ours" not in found and names(found["folder"]) == ["--kept", "-k"]
    assert found["every"].help == "Steps (3)." and found["every"].min == 1
    assert names(found["layered"]) == ["--layered/--no-layered"]
    assert [flag_of(*each) for each in options_of(Kept)][-1] == "--layered"
    assert group_of(Kept | None) is Kept and group_of(Kept) is Kept and group_of(int | None) is None


def test_what_was_given_is_read_and_the_rest_is_the_dataclass_own() -> None:
    assert made(folder=Path("a")) == Kept(Path("a"))
    found = made(
        folder=Path("a"), limit_bytes="2GB", words="b, c", is_masked=True, is_loud=True, layered=False
    )
    assert found == Kept(Path("a"), 3, 2e9, ("b", "c"), False, True, False)


def test_nothing_given_is_the_default_and_what_the_others_need_is_asked_for() -> None:
    assert made(None) is None
    with pytest.raises(SpecError, match="--every, --loud without --kept; allowed: --kept beside it"):
        made(None, every=3, is_loud=True)
