"""Rings: what writers wait for, as the obvious Python says it, on random programs and in closed cases."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import examples
from tests.ir.random_program import random_general
from tests.ir.timing import obvious_ring

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Pattern, ValueKind
from meshwright.ir.timing import dependencies as derived
from meshwright.ir.timing.dependency_table import RING, Dependencies
from meshwright.ir.timing.ring import ring_dependencies
from meshwright.specs.error import ProgramError

FIELDS = ("ptr", "row", "lag", "version")


def without_rings(program: Program, monkeypatch: pytest.MonkeyPatch) -> Dependencies:
    """What rows wait for before rings are looked at."""
    with monkeypatch.context() as patch:
        patch.setattr(derived, "ring_dependencies", lambda _, deps: deps)
        return derived.dependencies(program)


def outcome(program: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compare both on a program: the same tables ("waits", or "none"), or the same error ("refused")."""
    deps = without_rings(program, monkeypatch)
    try:
        expected = obvious_ring.ring_dependencies(program, deps)
    except ProgramError as error:
        with pytest.raises(ProgramError) as refused:
            ring_dependencies(program, deps)
        assert str(refused.value) == str(error)
        return "refused"
    ours = ring_dependencies(program, deps)
    for name in FIELDS:
        one, other = getattr(ours, name), getattr(expected, name)
        np.testing.assert_array_equal(one, other, err_msg=name)
        assert one.dtype == other.dtype
    return "waits" if (expected.version == RING).any() else "none"


def with_rings(rng: Random) -> Program:
    """A random program, kinds of which have another number of slots."""
    program = random_general(rng, 40)
    kinds = [kind._replace(ring=rng.choice((kind.ring, 0, 1, 2, 3))) for kind in program.tables.value_kinds]
    return program.with_tables(value_kinds=tuple(kinds))


@settings(max_examples=examples(400))
@given(st.integers(0, 10**9))
def test_rings_of_random_programs_are_the_obvious_ones(seed: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        outcome(with_rings(Random(seed)), monkeypatch)


def test_random_programs_have_rings_that_hold_and_rings_that_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Counter(outcome(with_rings(Random(seed)), monkeypatch) for seed in range(100))
    assert found["waits"] >= 20 and found["refused"] >= 10


def made_and_used(slots: int, ahead: int, count: int = 6) -> Program:
    """One list: x.0 to x.5 are made into a ring, each used when `ahead` others were made behind it."""
    kinds = (ValueKind("x", index="none", microbatch=False, ring=slots),)
    builder = ProgramBuilder([Axis("a", 1)], value_kinds=kinds)
    x = Pattern("x", index="none", part="row")
    for place in range(count + ahead):
        if place < count:
            builder.add(0, Effect(Kind.COPY, "make", (), (x,)), part=place, stream="load")
        if place >= ahead:
            builder.add(0, Effect(Kind.COMPUTE, "use", (x,)), part=place - ahead)
    return builder.build()


def waits_of_makers(program: Program) -> list[set[tuple[str, int]]]:
    """Of every row that makes, what its ring makes it wait for: (text, iterations ago)."""
    deps = derived.dependencies(program)
    return [
        {
            (program.text_of(int(deps.row[k])).split("{")[0], int(deps.lag[k]))
            for k in range(deps.ptr[i], deps.ptr[i + 1])
            if deps.version[k] == RING
        }
        for i in range(program.num_rows)
        if program.row(i).name == "make"
    ]


def test_a_write_waits_for_the_readers_of_what_it_displaces() -> None:
    waits = waits_of_makers(made_and_used(slots=2, ahead=1))
    names = [{text.removeprefix("0") for text, _ in each} for each in waits]
    assert [sorted({lag for _, lag in each}) for each in waits] == [[1], [1], [0], [0], [0], [0]]
    assert names[2] == {"make0", "use0"} and names[0] == {"make0.4", "use0.4"}


def test_a_ring_with_too_few_slots_is_refused() -> None:
    with pytest.raises(ProgramError, match="give the ring more slots or move the reader before the write"):
        derived.dependencies(made_and_used(slots=2, ahead=2))
