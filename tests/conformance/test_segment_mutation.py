"""Faults of programs of segments: `verify` refuses each, or what the outputs are made of stays the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pytest

import meshwright.ir.judge.verify as verify_module
from meshwright.ir import Kind, Pattern, Program
from tests.conformance.mutant import Mutation, accepted, mutations, pairs, read_past
from tests.lowering.segment.segment_program import (
    FOUR_LAYERS,
    HALVES,
    SEQUENCE_PARALLEL,
    TP,
    TWO_LAYERS,
    segment_program,
)

IN_PARTS = {"batch": 2, "microbatch_size": 2, "token_parts": 2}
CHUNKS = {"batch": 1, "token_parts": 2, "parts_of": "sequence"}
CASES: dict[str, dict[str, Any]] = {
    "tp sp": SEQUENCE_PARALLEL,
    "gathered keys": {**TP, "cp": 2, "context": "all_gather"},
    "sp, parts": {**SEQUENCE_PARALLEL, **IN_PARTS},
    "ring": {"cp": 4, "context": "ring"},
    "ulysses in a ring": {"cp": 4, "ulysses": 2},
    "encoder": {**TP, "model": HALVES},
    "zero2, split backward": {**TP, "dp": 2, "sharding": "zero2", "split_backward": True},
}
SLOW: dict[str, dict[str, Any]] = {
    "tp": TP,
    "tp pp": {**TP, "pp": 2, "model": TWO_LAYERS},
    "recompute": {**TP, "recompute": "full"},
    "split backward": {**TP, "split_backward": True},
    "chunks": {**TP, **CHUNKS},
    "ulysses": {"cp": 2, "context": "ulysses"},
    "token ring": {"cp": 4, "context": "token_ring"},
    "ring self-attention": {"cp": 4, "context": "ring_self_attention"},
    "ring, recompute": {"cp": 2, "context": "ring", "recompute": "selective"},
    "zero3": {**SEQUENCE_PARALLEL, "dp": 2, "sharding": "zero3"},
    "tp sp pp": {**SEQUENCE_PARALLEL, "pp": 2, "model": TWO_LAYERS},
    "sp, recompute": {**SEQUENCE_PARALLEL, "recompute": "full"},
    "sp, split backward": {**SEQUENCE_PARALLEL, "split_backward": True},
    "ring, parts": {"cp": 2, "context": "ring", **IN_PARTS},
    "encoder, sp pp": {**SEQUENCE_PARALLEL, "pp": 2, "model": HALVES},
    "zero1": {**SEQUENCE_PARALLEL, "dp": 2, "sharding": "zero1"},
    "uneven parts": {**TP, "batch": 4, "microbatch_size": 4, "token_parts": "3:1"},
    "sp, uneven chunks": {**SEQUENCE_PARALLEL, **CHUNKS, "token_parts": "1:2:1"},
    "chunks, selective": {**TP, **CHUNKS, "recompute": "selective"},
    "chunks, split backward, pp": {**CHUNKS, "pp": 2, "split_backward": True, "model": TWO_LAYERS},
    "ring of 4, parts": {"cp": 4, "context": "ring", **IN_PARTS},
    "ring, recompute, parts": {"cp": 2, "context": "ring", "recompute": "selective", **IN_PARTS},
    "token ring, parts": {"cp": 2, "context": "token_ring", **IN_PARTS},
    "token ring, recompute": {"cp": 2, "context": "token_ring", "recompute": "selective"},
    "ring self-attention, parts": {"cp": 2, "context": "ring_self_attention", **IN_PARTS},
    "ulysses, parts": {"cp": 2, "context": "ulysses", **IN_PARTS},
    "ulysses in a ring, parts": {"cp": 4, "ulysses": 2, **IN_PARTS},
    "ulysses in a ring, sp": {**SEQUENCE_PARALLEL, "cp": 4, "ulysses": 2},
    "ulysses tp": {**TP, "cp": 2, "context": "ulysses"},
    "ulysses sp": {**SEQUENCE_PARALLEL, "cp": 2, "context": "ulysses"},
    "ring tp": {**TP, "cp": 2, "context": "ring"},
    "zbv": {**TP, "pp": 2, "schedule": "zbv", "model": FOUR_LAYERS, "batch": 2},
    "encoder, tp pp": {**TP, "pp": 2, "model": FOUR_LAYERS.changed(num_encoder_layers=1)},
    "encoder, selective": {**SEQUENCE_PARALLEL, "model": HALVES, "recompute": "selective"},
    "encoder, split backward": {**SEQUENCE_PARALLEL, "model": HALVES, "split_backward": True},
    "pp, sp, recompute, zero3": {
        **SEQUENCE_PARALLEL, "pp": 2, "dp": 2, "recompute": "full", "sharding": "zero3", "model": TWO_LAYERS,
    },
}  # fmt: skip

# Of these a few double faults, drawn; of all many more with the slow tests.
SAMPLED = ("chunks", "encoder", "sp, recompute", "split backward", "ulysses", "ring", "zero3")
NUM_PAIRS = 30


def read_ahead(program: Program) -> Iterator[tuple[str, Mutation]]:
    """Every effect that reads what a collective takes, with what that makes of it; not those that read both, as steps do
    with memory that holds one behind the other."""
    effects, used = program.tables.effects, np.unique(program.columns.effect).tolist()
    moved = {
        (effects[e].reads[0].kind, effects[e].writes[0].kind)
        for e in used
        if effects[e].kind == Kind.COLLECTIVE and effects[e].writes
    }
    for taken, made in sorted(pair for pair in moved if pair[0] != pair[1]):
        for e in used:
            kinds = {p.kind for p in effects[e].reads}
            if taken in kinds and made not in kinds:
                yield f"{effects[e].name} reads {made} for {taken}", read_past(e, taken, made)


def read_other_steps(program: Program) -> Iterator[tuple[str, Mutation]]:
    """Every effect that reads a value of the step of a relay before, or behind, the one that it needs."""
    for e in np.unique(program.columns.effect).tolist():
        for pattern in program.tables.effects[e].reads:
            if pattern.part != "zero" or pattern.part_offset:
                for by in (-1, 1):
                    name = f"{program.tables.effects[e].name} reads {pattern.kind} {by:+d}"
                    yield name, _stepped(e, pattern, by)


def _stepped(effect: int, pattern: Pattern, by: int) -> Mutation:
    other = pattern._replace(part_offset=pattern.part_offset + by)

    def change(program: Program) -> Program:
        effects = list(program.tables.effects)
        reads = tuple(other if p == pattern else p for p in effects[effect].reads)
        effects[effect] = effects[effect]._replace(reads=reads)
        return program.with_tables(effects=tuple(effects))

    return change


def faults_of(program: Program) -> list[tuple[str, Mutation]]:
    return [*mutations(program), *read_ahead(program), *read_other_steps(program)]


def program_of(case: str) -> Program:
    return segment_program(**{**CASES, **SLOW}[case])


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_no_fault_is_accepted_that_changes_an_output(case: str) -> None:
    program = program_of(case)
    num, found = accepted(program, iter(faults_of(program)))
    assert num > program.num_rows
    assert not found


@pytest.mark.parametrize("case", SAMPLED)
def test_no_double_fault_of_a_sample_is_accepted(case: str) -> None:
    program = program_of(case)
    faults = pairs(Random(case), program, NUM_PAIRS, faults_of(program))
    num, found = accepted(program, islice(faults, NUM_PAIRS))
    assert num == NUM_PAIRS
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *SLOW])
def test_a_thousand_double_faults(case: str) -> None:
    program = program_of(case)
    _, found = accepted(program, pairs(Random(f"{case} again"), program, 1000, faults_of(program)))
    assert not found


@pytest.mark.parametrize(
    ("case", "check", "words"),
    [
        ("tp", "check_layouts", "reads partial for summed"),
        ("tp", "check_layouts", r"ALL_REDUCE0 at 1 ends as .*reduce_scatter"),
        ("tp sp", "check_layouts", "F reads normed for entered"),
        ("tp sp", "check_layouts", r"REDUCE_SCATTER0 at 1 ends as .*all_gather"),
        ("gathered keys", "check_layouts", "reads block for all_blocks"),
        ("zero1", "check_layouts", r"ALL_REDUCE0 at \d ends as .*'dp'"),
        ("split backward", "check_duties", r"without \d+W0"),
        ("ulysses", "check_layouts", "F reads head_parts for own_heads"),
        ("ulysses", "check_layouts", "ALL_TO_ALL0 at 1 ends as .*send_receive"),
        ("ring", "check_layouts", r"SEND_BLOCK0 at 2 ends as .*shift=2"),
        ("ring", "check_layouts", r"SEND_BLOCK_GRADIENT0\.3 at 2 ends as .*shift=3"),
    ],
)
def test_without_its_check_a_fault_is_accepted(
    case: str, check: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second judge sees what each check refuses."""
    program = program_of(case)
    faults = [each for each in faults_of(program) if re.search(words, each[0])]
    assert faults and not accepted(program, iter(faults))[1]
    monkeypatch.setattr(verify_module, check, lambda _: None)
    _, found = accepted(program, iter(faults))
    assert found
