"""The numbers of values: as plain Python counts them, each its own, and of every kind only as many as rows name."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.kernel import kernel
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.value_space import codes_of, value_space
from meshwright.specs.error import MeshwrightError
from tests.ir.random_program import random_program

STEPS = 16


@settings(max_examples=100)
@given(st.integers(0, 10**9))
def test_kernels_number_values_as_plain_python_does(seed: int) -> None:
    program = random_program(Random(seed))
    deps, space = dependencies(program), value_space(program)
    for row in range(program.num_rows):
        effect = program.tables.effects[program.columns.effect[row]]
        codes = codes_of(program, row, effect.writes, space)
        assert deps.code[deps.write_ptr[row] : deps.write_ptr[row + 1]].tolist() == codes
        for code in codes:
            kind, index, microbatch, part = space.split(code)
            assert min(index, microbatch, part) >= 0
            assert (
                index < space.indices[kind]
                and microbatch < space.microbatches[kind]
                and part < space.parts[kind]
            )
            place = (index * space.microbatches[kind] + microbatch) * space.parts[kind] + part
            assert space.base[kind] + place == code


def test_a_kind_has_the_parts_that_its_own_rows_name() -> None:
    """A relay of many steps beside a value that has one part."""
    kinds = tuple(
        ValueKind(name, index="none", microbatch=False) for name in ("whole", "block", "state", "unused")
    )
    builder = ProgramBuilder([Axis("a", 1)], value_kinds=kinds)
    whole, block = Pattern("whole", index="none"), Pattern("block", index="none", part="row")
    state = Pattern("state", index="none", part="row", part_offset=1)
    builder.add(0, Effect(Kind.COMPUTE, "MAKE", (), (whole,)))
    for step in range(STEPS):
        builder.add(0, Effect(Kind.COMPUTE, "TAKE", (whole,), (block, state)), part=step)
    space = value_space(builder.build())
    assert space.parts.tolist() == [1, STEPS, STEPS + 1, 1]
    assert space.size == space.counts.sum() == 2 * STEPS + 3
    assert len(space.bytes) == len(space.tier) == space.size


def until(offset: int = 0) -> Program:
    """Parts of a value, of which each next row reads all up to its own."""
    kinds = tuple(ValueKind(name, index="none", microbatch=False) for name in ("block", "seen"))
    builder = ProgramBuilder([Axis("a", 1)], value_kinds=kinds)
    block, seen = (Pattern(kind.name, index="none", part="row") for kind in kinds)
    for step in range(STEPS):
        builder.add(0, Effect(Kind.COMPUTE, "MAKE", (), (block,)), part=step)
        every = block._replace(part="until", part_offset=offset)
        builder.add(0, Effect(Kind.COMPUTE, "TAKE", (every,), (seen,)), part=step)
    return builder.build()


@pytest.mark.parametrize("rows", [0, 1 << 30])
def test_a_row_reads_all_parts_up_to_its_own(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and in plain Python: as many versions as parts, and edges to those that wrote them."""
    monkeypatch.setattr(kernel, "SMALL_ROWS", rows)
    program = until()
    deps = dependencies(program)
    for step in range(STEPS):
        row = 2 * step + 1
        own = slice(int(deps.ptr[row]), int(deps.ptr[row + 1]))
        assert deps.row[own].tolist() == [2 * each for each in range(step + 1)]
        assert codes_of(program, row, program.tables.effects[1].reads) == list(range(step + 1))


@pytest.mark.parametrize("offset", [-1, 1])
def test_parts_that_are_not_there_are_refused(offset: int) -> None:
    with pytest.raises(MeshwrightError, match="block"):
        dependencies(until(offset))
