"""The uneven all-to-all: golden text, sizes from a trace in simulation, memory on the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from meshwright.costs.cost import Cost
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Exchange, Work
from meshwright.ir.text import from_text, to_text
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError
from tests.golden.text import check_golden
from tests.probes.uneven_all_to_all import TOKEN_BYTES, bound_to, uneven_all_to_all


@dataclass(frozen=True)
class BytesCost:
    """Computes take a second, exchanges a second a byte."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        return Cost(1.0)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(num_bytes, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[()]:
        return ()


def test_golden() -> None:
    program = uneven_all_to_all()
    check_golden("probe_uneven_all_to_all", to_text(program))
    assert to_text(from_text(to_text(program))) == to_text(program)


@pytest.mark.parametrize("host", HOSTS)
def test_memory_is_verified_on_the_maximum(host: str) -> None:
    """All tokens of all four devices at one expert, beside the six sorted ones."""
    assert verify(uneven_all_to_all(6), host).peak_of() == (6 * 4 + 6) * TOKEN_BYTES


def test_a_size_that_is_not_in_the_table_is_named() -> None:
    with pytest.raises(ProgramError, match="run-time size 'routed'"):
        verify(uneven_all_to_all().with_tables(sizes=()))


def test_the_simulation_takes_sizes_from_a_trace() -> None:
    """Two all-to-alls of the largest share, three computes; the counts have no bytes."""
    program = uneven_all_to_all(6)
    for received in ([6, 6, 6, 6], [12, 4, 4, 4], [24, 0, 0, 0]):
        trace = simulate_program(bound_to(program, received), BytesCost(), BytesCost())
        assert trace.end_s.max() == pytest.approx(3.0 + 2 * max(received) * TOKEN_BYTES)
    expected = simulate_program(program, BytesCost(), BytesCost())
    assert expected.end_s.max() == pytest.approx(3.0 + 2 * 6 * TOKEN_BYTES)
