"""The memory ledger: on every timeline, with latencies on whatever it is, it stays under the bound that `verify` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest

from meshwright.ir import Program, Trace, ValueBytes, Wiring, peak_bytes, replay, verify
from meshwright.simulator import memory_curves
from meshwright.simulator.ledger import ended
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError, ProgramError
from tests.ir.random_program import random_costs, random_program

Lives = Callable[[Wiring, np.ndarray, np.ndarray], np.ndarray]


def programs(seeds: range) -> Iterator[tuple[Random, Program]]:
    """Random programs of every kind of row, all of whose values have a size."""
    for seed in seeds:
        rng = Random(seed)
        program = random_program(rng)
        sizes = (ValueBytes(kind.name, (float(rng.randint(1, 9)),)) for kind in program.tables.value_kinds)
        yield rng, program.with_tables(value_bytes=tuple(sizes))


def peaks_and_bounds(seeds: range, lives: Lives) -> np.ndarray:
    """Peak and bound of every device, [timelines x devices, 2], in bytes, where memory ends when ``lives`` says."""
    found = []
    for rng, program in programs(seeds):
        try:
            proven = verify(program)
        except ProgramError:  # a random program that is none: duties, rings that a batch fills twice
            continue
        for _ in range(3):
            seconds, latency = random_costs(rng, program)
            try:
                posted, start, end = replay(
                    proven.wiring, seconds, latency, iterations=2, host=rng.choice(HOSTS)
                )
            except DeadlockError:  # of a host that walks in order
                continue
            curves = memory_curves(proven.wiring, posted, lives(proven.wiring, end, latency))
            trace = Trace(program, posted, start, end, "max-plus", curves, {})
            found += [(peak_bytes(trace, d), proven.peak_bytes[d, 0]) for d in range(program.num_lists)]
    return np.array(found)


def test_no_timeline_with_latencies_needs_more_than_the_bound() -> None:
    peak, bound = peaks_and_bounds(range(500), ended).T
    assert len(peak) > 2000
    assert (peak <= bound + 1e-9).all()
    assert (peak > 0.8 * bound).mean() > 0.2, "a bound that nothing comes near helps nobody"


def test_memory_until_outputs_are_complete_would_break_the_bound() -> None:
    """What a compute read is free when its stream is, however much later others see what it wrote."""
    peak, bound = peaks_and_bounds(range(100), lambda wiring, end, latency: end).T
    assert (peak > bound).any()


@pytest.mark.parametrize("seed", range(5))
def test_an_exchange_has_the_latency_of_its_slowest_end(seed: int) -> None:
    for rng, program in programs(range(100 * seed, 100 * seed + 20)):
        seconds, latency = random_costs(rng, program)
        try:
            wiring = verify(program).wiring
            _, start, end = replay(wiring, seconds, latency)
        except ProgramError:
            continue
        free = ended(wiring, end, latency)[0]
        for first in range(program.num_rows):
            circle, row = [first], int(wiring.next_end[first])
            while row != first:
                circle.append(row)
                row = int(wiring.next_end[row])
            assert free[first] == pytest.approx(end[0, first] - max(latency[circle]), abs=1e-9)


def test_without_latencies_nothing_changes() -> None:
    for _, program in programs(range(20)):
        try:
            wiring = verify(program).wiring
        except ProgramError:
            continue
        end = np.ones((1, program.num_rows))
        assert ended(wiring, end, np.zeros(program.num_rows)) is end
