"""Adapters by name: who has one keeps it, who comes later gets another, and a new engine gets them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.serving.engine.served_adapters import ServedAdapters, name_of_key
from meshwright.specs.error import ExecutionError, SpecError, UnknownNameError


class CountingRunner:
    """Numbers folders, and remembers what it dropped; folders named "broken" are no adapters."""

    def __init__(self) -> None:
        self.last, self.dropped = 0, list[int]()

    def load_adapter(self, folder: Path) -> int:
        if folder.name == "broken":
            raise ExecutionError("no adapter")
        self.last += 1
        return self.last

    def drop_adapter(self, number: int) -> None:
        self.dropped.append(number)


def test_who_has_an_adapter_keeps_it_and_the_next_of_its_name_is_another() -> None:
    runner, adapters = CountingRunner(), ServedAdapters(2)
    adapters.attach(runner)
    adapters.load("a", Path("one"))
    first = adapters.key_of("a")
    adapters.hold(first)
    assert adapters.begin(first) == 1
    adapters.unload("a")
    assert adapters.names == () and runner.dropped == []
    with pytest.raises(UnknownNameError):
        adapters.hold(first)
    assert adapters.begin(first) == 1  # a second output of the same request
    adapters.load("a", Path("two"))
    second = adapters.key_of("a")
    assert second != first and name_of_key(second) == name_of_key(first) == "a"
    with pytest.raises(SpecError, match="2 adapters are loaded"):
        adapters.load("b", Path("three"))
    adapters.release(first)
    adapters.end(first)
    assert runner.dropped == []
    adapters.end(first)
    assert runner.dropped == [1] and adapters.names == ("a",)
    adapters.load("b", Path("three"))
    assert adapters.begin(adapters.key_of("b")) == 3


def test_a_new_engine_gets_all_but_those_whose_folders_are_gone(tmp_path: Path) -> None:
    adapters = ServedAdapters(3)
    adapters.attach(CountingRunner())
    for name in "abc":
        adapters.load(name, tmp_path / name)
    adapters.begin(adapters.key_of("c"))  # with the engine that failed
    adapters._there[adapters.key_of("b")].folder = tmp_path / "broken"
    runner = CountingRunner()
    adapters.attach(runner)
    assert adapters.names == ("a", "c") and adapters.begin(adapters.key_of("c")) == 2
    adapters.unload("a")
    assert runner.dropped == [1]


def test_names_are_once_and_none_where_none_are_taken() -> None:
    adapters = ServedAdapters(1)
    adapters.attach(CountingRunner())
    with pytest.raises(ExecutionError):
        adapters.load("a", Path("broken"))
    adapters.load("a", Path("one"))
    with pytest.raises(SpecError, match="loaded already"):
        adapters.load("a", Path("two"))
    with pytest.raises(UnknownNameError):
        adapters.unload("b")
    with pytest.raises(SpecError, match="0 adapters are loaded"):
        none = ServedAdapters()
        none.attach(CountingRunner())
        none.load("a", Path("one"))
