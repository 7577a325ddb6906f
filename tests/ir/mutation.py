"""Single random faults in programs: what `verify` has to refuse, or accept only where the outputs stay the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.specs.error import MeshwrightError

Mutant = Program | None
FAULTS: dict[str, Callable[[Random, Program], Mutant]] = {}


def fault(function: Callable[[Random, Program], Mutant]) -> Callable[[Random, Program], Mutant]:
    FAULTS[function.__name__] = function
    return function


def _row(rng: Random, program: Program) -> tuple[int, int, int]:
    """A row, and the bounds of its list."""
    row = rng.randrange(program.num_rows)
    device = int(program.list_of_row[row])
    return row, int(program.offsets[device]), int(program.offsets[device + 1])


@fault
def drop(rng: Random, program: Program) -> Mutant:
    """One row less."""
    row, _, _ = _row(rng, program)
    order = np.delete(np.arange(program.num_rows), row)
    offsets = program.offsets - (np.arange(len(program.offsets)) > program.list_of_row[row])
    return program.reordered(order, offsets)


@fault
def swap(rng: Random, program: Program) -> Mutant:
    """Two rows of a list, neighbours or any, change places."""
    row, low, high = _row(rng, program)
    other = min(row + 1, high - 1) if rng.random() < 0.5 else rng.randrange(low, high)
    if other == row or len(program.after):
        return None
    order = np.arange(program.num_rows)
    order[[row, other]] = order[[other, row]]
    return program.reordered(order, program.offsets)


@fault
def duplicate(rng: Random, program: Program) -> Mutant:
    """One row a second time, somewhere behind itself."""
    row, _, high = _row(rng, program)
    place = row + 1 if rng.random() < 0.5 else rng.randint(row + 1, high)
    return program.inserted(np.array([place]), program.list_of_row[[row]], program.columns.take([row]))


@fault
def retarget(rng: Random, program: Program) -> Mutant:
    """One exchange gets another class."""
    rows = np.flatnonzero(program.columns.exchange >= 0)
    if not len(rows) or len(program.tables.exchanges) < 2:
        return None
    row = int(rng.choice(rows))
    return _changed(program, "exchange", row, rng.randrange(len(program.tables.exchanges)))


@fault
def retag(rng: Random, program: Program) -> Mutant:
    """One row gets another microbatch, hop or part (of those that occur)."""
    column = rng.choice(("microbatch", "hop", "part"))
    values = getattr(program.columns, column)
    return _changed(program, column, rng.randrange(program.num_rows), rng.randint(0, int(values.max())))


@fault
def restream(rng: Random, program: Program) -> Mutant:
    """One row goes to another stream."""
    return _changed(
        program, "stream", rng.randrange(program.num_rows), rng.randrange(len(program.tables.streams))
    )


def _changed(program: Program, column: str, row: int, value: int) -> Mutant:
    values = getattr(program.columns, column).copy()
    if values[row] == value:
        return None
    values[row] = value
    return program.with_columns(**{column: values})


def mutant_of(rng: Random, program: Program, name: str) -> Program:
    """A mutant of this kind; tries again where a draw changed nothing."""
    for _ in range(200):
        mutant = FAULTS[name](rng, program)
        if mutant is not None:
            return mutant
    raise LookupError(name)


def check_refused(name: str, program: Program) -> None:
    """Of a few mutants of this kind `verify` refuses each or its outputs are the same; but of restream it refuses some."""
    wanted, refused = outputs(program), 0
    for seed in range(12):
        mutant = FAULTS[name](Random(seed), program)
        if mutant is None:
            continue
        try:
            verify(mutant)
        except MeshwrightError:
            refused += 1
        else:
            assert outputs(mutant) == wanted, seed
    assert refused or name == "restream"
