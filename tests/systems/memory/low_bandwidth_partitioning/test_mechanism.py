"""Steps of every partitioning: legal on any mesh, their bytes counted, memory as the formulas."""

from __future__ import annotations

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.systems.memory.low_bandwidth_partitioning.mechanism import (
    AXES,
    GATHER,
    GATHER_STEPPED,
    PARTITIONINGS,
    SCATTER,
    SCATTER_NODES,
    TOPOLOGY,
    ZERO_3,
    ZERO_PLUS_PLUS,
    Mesh,
    Partitioning,
    StepSize,
    held_bytes,
    training_step,
)

LAYERS = (96.0, 128.0, 64.0)


def sent_bytes(program: Program, name: str) -> float:
    """Bytes of all exchanges of a name, as their sizes say."""
    sizes = {size.name: size.expected for size in program.tables.sizes}
    rows = [row for row in program.instructions(0) if row.name == name]
    return sum(sizes[row.exchange.size] for row in rows if row.exchange is not None)


@pytest.mark.parametrize("name", PARTITIONINGS)
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("mesh", [Mesh(2, 1, 2), Mesh(2, 2, 2), Mesh(1, 2, 2)], ids=str)
def test_steps_are_legal(name: str, is_overlapped: bool, mesh: Mesh) -> None:
    program = training_step(PARTITIONINGS[name], mesh, StepSize(LAYERS, 2), is_overlapped)
    for host in ("asynchronous", "in_order"):
        verify(program, host)
    assert from_text(to_text(program)).digest() == program.digest()
    for axis in AXES:
        program = program.expand(axis)
    verify(program)
    assert program.num_lists == mesh.num_devices


def test_bytes_on_the_way_are_those_of_the_card() -> None:
    psi, m, mesh = sum(LAYERS), 3, Mesh(4)
    program = training_step(TOPOLOGY, mesh, StepSize(LAYERS, m))
    assert sent_bytes(program, GATHER) == 2 * m * psi  # int8, before forwards and backwards
    assert sent_bytes(program, SCATTER) == m * psi / 2  # int4
    assert sent_bytes(program, SCATTER_NODES) == pytest.approx(psi / 8 / 2)  # once a step
    assert sent_bytes(program, GATHER_STEPPED) == psi / 2  # int8, half of the weights
    plain = training_step(ZERO_3, mesh, StepSize(LAYERS, m))
    assert sent_bytes(plain, GATHER) == 2 * m * 2 * psi and sent_bytes(plain, SCATTER) == m * 2 * psi
    assert not sent_bytes(plain, GATHER_STEPPED)
    both = training_step(ZERO_PLUS_PLUS, mesh, StepSize(LAYERS, m))
    assert sent_bytes(both, GATHER) == m * psi and sent_bytes(both, SCATTER_NODES) == pytest.approx(
        m * psi / 16
    )


@pytest.mark.parametrize(
    ("one", "wanted"),
    [(ZERO_3, 16 / 32), (ZERO_PLUS_PLUS, 16 / 32 + 2 / 8), (TOPOLOGY, 2 / 2 + 2 / 8 + 12 / 32)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_memory_is_the_formulas(one: Partitioning, wanted: float) -> None:
    assert sum(held_bytes(one, 1000.0, Mesh(4)).values()) == pytest.approx(1000 * wanted)
