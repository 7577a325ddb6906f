"""Tests of tests/spread.py: everything is tried once, from both ends, and the pool's files by one process first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("xdist")

from tests.spread import FromBothEnds, spread, wants_pool

NUM_TESTS = {"a": 1, "b": 5, "pool_c": 2, "d": 3, "pool_e": 4}


def test_the_longest_of_each_kind_stand_at_the_ends() -> None:
    assert spread(NUM_TESTS, lambda file: file.startswith("pool")) == ["pool_e", "pool_c", "a", "d", "b"]


def test_who_wants_the_pool_is_read_in_the_file(checkout: Path) -> None:
    assert wants_pool(checkout / "tests/executor/test_layouts.py")
    assert not wants_pool(checkout / "tests/test_covering.py")


class Process:
    """What a testing process was asked to try."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="process")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.asked += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_two_processes_meet_and_nothing_is_tried_twice(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for file in NUM_TESTS:
        (tmp_path / file).write_text("gloo_pool" if file.startswith("pool") else "")
    tests = [f"{file}::{number}" for file, many in NUM_TESTS.items() for number in range(many)]
    option = SimpleNamespace(loadscopereorder=True)
    config = SimpleNamespace(
        rootpath=tmp_path, option=option, getvalue=lambda name: ["popen", "popen"] if name == "tx" else None
    )
    made = FromBothEnds(config)  # type: ignore[arg-type]
    one, other = processes = Process(), Process()
    for each in processes:
        made.add_node(each)  # type: ignore[arg-type]
        made.add_node_collection(each, tests)  # type: ignore[arg-type]
    made.schedule()
    told = [0, 0]
    while any(told[n] < len(each.asked) for n, each in enumerate(processes)):
        for number, each in enumerate(processes):
            if told[number] < len(each.asked):
                told[number] += 1
                made.mark_test_complete(each, each.asked[told[number] - 1])
    files = [list(dict.fromkeys(tests[index].split("::")[0] for index in each.asked)) for each in processes]
    assert files[0][:2] == ["pool_e", "pool_c"] and files[1][:2] == ["b", "d"]
    assert sorted(one.asked + other.asked) == list(range(len(tests)))
    assert made.tests_finished and not made.has_pending
