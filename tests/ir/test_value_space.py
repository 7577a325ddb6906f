"""The numbers of values: as plain Python counts them, each its own, and of every kind only as many as rows name."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.program import Axis, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.value_space import codes_of, value_space
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
