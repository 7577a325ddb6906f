"""A deadlock is told by its circle: each row with what it waits for, and the orders that close it."""

from __future__ import annotations

from random import Random

import pytest
from tests.ir.random_program import random_costs, random_general

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing import replay as module
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wait_cycle import OTHER_END, Wait, wait_cycle
from meshwright.ir.timing.wiring import wire
from meshwright.lowering import Transfers, program_of_orders
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError


def crossed() -> Program:
    """Device 0 wants a gradient before it sends what device 1 needs for it."""
    first = [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)]
    last = [("F", 1, 0), ("F", 1, 1), ("B", 1, 0), ("B", 1, 1)]
    return Transfers()(program_of_orders([first, last]))


def test_the_circle_of_computes_is_told_step_by_step() -> None:
    with pytest.raises(DeadlockError) as refused:
        verify(crossed())
    _, head, *lines = str(refused.value).splitlines()
    assert head == "4 rows wait for each other in a circle:"
    assert sorted(line.strip() for line in lines[:4]) == [
        "0B0 (device 0) waits for what 1B0 (device 1) sends",
        "0F1 (device 0) waits for 0B0 (device 0), which stands before it on stream compute",
        "1B0 (device 1) waits for 1F1 (device 1), which stands before it on stream compute",
        "1F1 (device 1) waits for what 0F1 (device 0) sends",
    ]
    assert "turn one of these orders around: " in lines[4]
    assert {"1F1 before 1B0", "0B0 before 0F1"} == set(lines[4].partition(": ")[2].split(", "))
    assert "<-- here" in "\n".join(lines[5:])


def test_every_deadlock_of_random_programs_has_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row waits for the next, none of them ends, and an exchange that was posted waits for an end that was not."""
    found: list[list[Wait]] = []

    def kept(wiring, posted, end, issued):  # type: ignore[no-untyped-def]
        cycle = wait_cycle(wiring, posted, end, issued)
        assert [wait.of for wait in cycle] == [wait.row for wait in [*cycle[1:], cycle[0]]]
        assert all(end[wait.row] < 0 for wait in cycle)
        exchanges = [wait.row for wait in cycle if wait.why == OTHER_END]
        assert all(wiring.program.kinds[row] != Kind.COMPUTE and posted[row] >= 0 for row in exchanges)
        found.append(cycle)
        return cycle

    monkeypatch.setattr(module, "wait_cycle", kept)
    for seed in range(400):
        program = random_general(Random(seed))
        seconds, latency_s = random_costs(Random(seed), program)
        for host in HOSTS:
            try:
                replay(wire(program), seconds, latency_s, host=host)
            except DeadlockError as error:
                assert "in a circle" in str(error)
    assert len(found) >= 20
