"""Buffers of gradients beside what is kept of them: who has one, how large it is, and how long it lives."""

import numpy as np
import pytest
from tests.lowering.plans import lowered, plan

from meshwright.ir import from_text, to_text
from meshwright.ir.core_vocabulary import GRADIENT_BUFFER
from meshwright.ir.judge.verify import verify
from meshwright.ir.timing.replay import wire

OWN = {"dtype": "float32", "master_dtype": "", "reduction_dtype": ""}
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def sizes_of(program):
    return {row.kind: row.by_index for row in program.tables.value_bytes}


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_gradients_in_one_format_are_added_where_they_are_kept(sharding):
    program = lowered(plan(dp=2, sharding=sharding, **OWN))
    assert GRADIENT_BUFFER.name not in sizes_of(program)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_scattered_gradients_are_whole_while_a_compute_adds_to_them(sharding):
    sizes = sizes_of(lowered(plan(dp=2, sharding=sharding, **OWN)))
    assert sizes[GRADIENT_BUFFER.name] == tuple(2 * each for each in sizes["weight_gradient"])


def test_gradients_that_are_widened_have_a_buffer_in_the_format_of_the_parameters():
    sizes = sizes_of(lowered(plan(dp=2, **MIXED)))
    assert sizes[GRADIENT_BUFFER.name] == tuple(each / 2 for each in sizes["weight_gradient"])


@pytest.mark.parametrize(
    "choices", [{"sharding": "zero3"}, {"split_backward": True, "sharding": "zero2"}], ids=str
)
def test_only_the_last_buffer_waits_for_the_reduction(choices):
    program = lowered(plan(dp=2, **OWN, **choices))
    effects, names = program.tables.effects, [e.name for e in program.tables.effects]
    writers = [e for e in effects if any(p.kind == GRADIENT_BUFFER.name for p in e.writes)]
    readers = {e.name for e in effects if any(p.kind == GRADIENT_BUFFER.name for p in e.reads)}
    assert {e.name for e in writers} <= {"B", "W"} and readers == {"REDUCE_GRAD"}
    deps = wire(program).deps
    kinds = [kind.name for kind in program.tables.value_kinds]
    read = deps.version[deps.version >= 0]
    whole = deps.space.kind_of(deps.code) == kinds.index(GRADIENT_BUFFER.name)
    num_reductions = sum(names[e] == "REDUCE_GRAD" for e in program.columns.effect)
    assert len(np.unique(read[whole[read]])) == num_reductions < whole.sum()
    verify(program)


def test_the_text_has_them():
    program = lowered(plan(dp=2, sharding="zero3", **OWN))
    again = from_text(to_text(program))
    assert sizes_of(again)[GRADIENT_BUFFER.name] == sizes_of(program)[GRADIENT_BUFFER.name]
    assert to_text(again) == to_text(program)
