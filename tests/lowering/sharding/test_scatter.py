"""Gradients of every microbatch, scattered: how many bytes, behind what, beside what, and what of them is whole at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.conformance.mutant import dropped, exchanged
from tests.lowering.plans import DENSE, EXPERTS, TIED, plan, rows_named
from tests.lowering.sharding.test_gather import asked_bytes

from meshwright.ir import from_text, to_text
from meshwright.ir.core_vocabulary import MICROBATCH_GRADIENT
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Kind, ValueBytes
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.lower import lower
from meshwright.lowering.sharding.scatter import IN_FLIGHT
from meshwright.schedules import registered
from meshwright.specs.error import ProgramError
from meshwright.stage.piece import num_pieces

OWN = {"dtype": "float32", "master_dtype": "", "reduction_dtype": ""}
LAYOUTS: list[dict[str, Any]] = [
    {"dp": 2, "sharding": "zero2"},
    {"dp": 2, "sharding": "zero3", "pp": 2},
    {"dp": 2, "sharding": "zero2", "split_backward": True},
    {"dp": 2, "sharding": "zero3", "tp": 2, "sequence_parallel": True, "split_backward": True},
    {"dp": 2, "sharding": "zero2", "pp": 2, "schedule": "zbv", "tp": 2},
    {"dp": 2, "sharding": "zero3", "tp": 2, "microbatch_size": 2, "token_parts": 2},
    {"dp": 4, "sharding": "zero2", "ep": 2, "model": EXPERTS},
    {"dp": 2, "sharding": "zero2", "pp": 2, "model": TIED},
]


def program_of(in_segments: bool = True, **choices: Any) -> Program:
    chosen = plan(choices.pop("model", DENSE), **choices)
    schedule = registered()[chosen.schedule]
    return lower(chosen, schedule, pieces=num_pieces(chosen), in_segments=in_segments)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize(("reduction", "size"), [("float32", 4), ("bfloat16", 2), ("", 2)])
def test_what_is_scattered_are_whole_gradients_in_their_format(
    sharding: str, reduction: str, size: int
) -> None:
    chosen = plan(pp=4, dp=2, sharding=sharding, reduction_dtype=reduction)
    middle = float(size * DENSE.num_block_parameters())
    first, last = DENSE.num_embedding_parameters, DENSE.num_head_parameters + DENSE.num_norm_parameters
    assert asked_bytes(chosen, "SCATTER_GRAD") == {middle, middle + size * first, middle + size * last}


@pytest.mark.parametrize("choices", LAYOUTS, ids=str)
@pytest.mark.parametrize("in_segments", [False, True])
def test_every_microbatch_is_scattered_once_behind_its_last_contribution(
    choices: dict[str, Any], in_segments: bool
) -> None:
    program = program_of(in_segments, **choices)
    verify(program)
    t, c = program.tables, program.columns
    adds = np.array([any(p.kind == MICROBATCH_GRADIENT.name for p in e.writes) for e in t.effects])[c.effect]
    scattered = set()
    for device in range(program.num_lists):
        for view in rows_named(program, "SCATTER_GRAD", device):
            g = t.groups_of_stage[view.stage][view.part]
            scattered.add((device, g, view.microbatch))
            assert view.stream == "reduce" and view.exchange.algorithm == "reduce_scatter"
            own = adds & (c.microbatch == view.microbatch) & np.isin(c.stage, t.groups[g].stages)
            assert np.flatnonzero(own & (program.list_of_row == device)).max() < view.row
    held = {(d, g) for s, own in enumerate(t.groups_of_stage) for d in t.devices_of_stage[s] for g in own}
    assert scattered == {(*each, m) for each in held for m in range(len(t.microbatches))}
    reduced = [view for d in range(program.num_lists) for view in rows_named(program, "REDUCE_GRAD", d)]
    # nothing is left to reduce but a table of two stages, shard by shard
    assert len(reduced) == (2 if choices.get("model") is TIED else 0)
    assert all(view.exchange.axes == ("pp",) and view.exchange.size == "" for view in reduced)


def test_what_fewer_devices_share_is_reduced_along_the_others_once() -> None:
    program = program_of(dp=4, sharding="zero2", sharding_degree=2)
    (scatter,), (reduction,) = (
        {view.exchange.axes for view in rows_named(program, name)} for name in ("SCATTER_GRAD", "REDUCE_GRAD")
    )
    assert scatter == ("dp2",) and reduction == ("dp",)
    assert len(rows_named(program, "SCATTER_GRAD")) == 4 * len(rows_named(program, "REDUCE_GRAD"))
    verify(program)


@pytest.mark.parametrize("choices", LAYOUTS[:4], ids=str)
def test_scatters_run_beside_what_is_computed_next(choices: dict[str, Any]) -> None:
    program = program_of(**choices)
    seconds = np.array([0.0, 1.0, 0.75])  # of what else is sent, of a compute, of a scatter
    is_scatter = np.array([e.name == "SCATTER_GRAD" for e in program.tables.effects])[program.columns.effect]
    cost = np.where(is_scatter, 2, program.kinds == Kind.COMPUTE).astype(np.int32)
    times = replay(wire(program), seconds, np.zeros(3), cost)
    start, end = (each.reshape(-1, program.num_rows)[0] for each in times[1:3])
    for device in range(program.num_lists):
        own = program.list_of_row == device
        computes, scatters = own & (program.kinds == Kind.COMPUTE), np.flatnonzero(own & is_scatter)
        beside = [
            bool((computes & (start < end[row]) & (end > start[row])).any()) for row in scatters.tolist()
        ]
        assert sum(beside) > len(beside) // 2, beside


def most_whole(program: Program) -> int:
    """How many gradients of microbatches there are at once where a scatter takes as long as a hundred other rows."""
    is_scatter = np.array([e.name == "SCATTER_GRAD" for e in program.tables.effects])[program.columns.effect]
    times = replay(wire(program), np.array([1.0, 100.0]), np.zeros(2), is_scatter.astype(np.int32))
    start, end = (each.reshape(-1, program.num_rows)[0] for each in times[1:3])
    adds = [any(p.kind == MICROBATCH_GRADIENT.name for p in e.writes) for e in program.tables.effects]
    c, groups = program.columns, program.tables.groups_of_stage
    begins: dict[tuple[int, int], float] = {}
    for row in np.flatnonzero(np.array(adds)[c.effect]).tolist():
        for g in groups[c.stage[row]]:
            begins.setdefault((g, int(c.microbatch[row])), start[row])
    events = [(at, 1) for at in begins.values()] + [(at, -1) for at in end[is_scatter].tolist()]
    return int(np.cumsum([change for _, change in sorted(events)]).max())


@pytest.mark.parametrize("in_segments", [False, True])
def test_two_gradients_are_whole_at_once(in_segments: bool) -> None:
    """One that is made, one that is scattered, however slowly. Without what computes wait for, many are."""
    program = program_of(in_segments, dp=2, tp=2, sharding="zero2", sequence_parallel=True)
    program = program.with_tables(value_bytes=(ValueBytes(MICROBATCH_GRADIENT.name, (1.0,)),))
    free = replace(program, after=np.empty((0, 2), dtype=np.int64))
    assert most_whole(program) == IN_FLIGHT and most_whole(free) > 2 * IN_FLIGHT
    # of all legal orders: one more may end when the next one begins
    assert verify(program).peak_of() == IN_FLIGHT + 1 and verify(free).peak_of() > 2 * IN_FLIGHT


def test_a_gradient_is_as_large_as_its_shards_and_ends_with_its_scatter() -> None:
    program = program_of(dp=2, sharding="zero2", **OWN)
    sizes = {row.kind: row.by_index for row in program.tables.value_bytes}
    assert sizes[MICROBATCH_GRADIENT.name] == tuple(2 * each for each in sizes["weight_gradient"])
    effects = {program.tables.effects[e] for e in np.unique(program.columns.effect)}
    kinds = {e.name: ({p.kind for p in e.reads}, {p.kind for p in e.writes}) for e in effects}
    readers = {name for name, (reads, _) in kinds.items() if MICROBATCH_GRADIENT.name in reads}
    assert readers == {"SCATTER_GRAD"}
    assert {name for name, (_, writes) in kinds.items() if "weight_gradient" in writes} == {"SCATTER_GRAD"}
    assert to_text(from_text(to_text(program))) == to_text(program)


def scatter_row(program: Program) -> int:
    return int(rows_named(program, "SCATTER_GRAD")[0].row)


def without(program: Program) -> Program:
    return dropped((scatter_row(program),))(program)


def twice(program: Program) -> Program:
    """The first microbatch's again, where that of the last stands: the count is right."""
    column = program.columns.microbatch.copy()
    column[rows_named(program, "SCATTER_GRAD")[-1].row] = 0
    return program.with_columns(microbatch=column)


def along(*axes: str) -> Any:
    def change(program: Program) -> Program:
        row = scatter_row(program)
        return exchanged((row,), program.row(row).exchange._replace(axes=axes))(program)

    return change


def summed(program: Program) -> Program:
    row = scatter_row(program)
    return exchanged((row,), program.row(row).exchange._replace(algorithm="all_reduce"))(program)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (without, "rows of SCATTER_GRAD"),
        (twice, "a second time"),
        (along("tp"), "scatter along exactly those"),
        (along("dp", "tp"), "scatter along exactly those"),
        (summed, "it is an reduce_scatter"),
    ],
)
def test_a_fault_is_refused(fault: Any, words: str) -> None:
    program = program_of(dp=2, tp=2, sharding="zero2", sequence_parallel=True)
    with pytest.raises(ProgramError, match=words):
        verify(fault(program))
