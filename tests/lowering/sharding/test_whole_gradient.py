"""Buffers of gradients beside what is kept of them: who has one, how large it is, and how long it lives."""

import pytest
from tests.lowering.plans import lowered, plan

from meshwright.ir import from_text, to_text
from meshwright.ir.core_vocabulary import GRADIENT_BUFFER
from meshwright.ir.judge.verify import verify

OWN = {"dtype": "float32", "master_dtype": "", "reduction_dtype": ""}
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def sizes_of(program):
    return {row.kind: row.by_index for row in program.tables.value_bytes}


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_gradients_in_one_format_are_added_where_they_are_kept(sharding):
    program = lowered(plan(dp=2, sharding=sharding, **OWN))
    assert GRADIENT_BUFFER.name not in sizes_of(program)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_gradients_that_are_scattered_are_apart_for_every_microbatch(sharding):
    """And need no other buffer, whatever their format."""
    for formats in (OWN, MIXED):
        assert not any(
            sizes_of(lowered(plan(dp=2, sharding=sharding, **formats))).get(GRADIENT_BUFFER.name, ())
        )


def test_gradients_that_are_widened_have_a_buffer_in_the_format_of_the_parameters():
    sizes = sizes_of(lowered(plan(dp=2, **MIXED)))
    assert sizes[GRADIENT_BUFFER.name] == tuple(each / 2 for each in sizes["weight_gradient"])


@pytest.mark.parametrize("choices", [{}, {"split_backward": True, "sharding": "zero1"}], ids=str)
def test_a_buffer_ends_with_its_compute(choices):
    program = lowered(plan(dp=2, **MIXED, **choices))
    used = {program.tables.effects[e] for e in program.columns.effect.tolist()}
    writers = {e.name for e in used if any(p.kind == GRADIENT_BUFFER.name for p in e.writes)}
    assert writers == {"W" if choices else "B"}
    assert not any(p.kind == GRADIENT_BUFFER.name for e in used for p in e.reads)
    verify(program)


def test_the_text_has_them():
    program = lowered(plan(dp=2, **MIXED))
    again = from_text(to_text(program))
    assert sizes_of(again)[GRADIENT_BUFFER.name] == sizes_of(program)[GRADIENT_BUFFER.name]
    assert to_text(again) == to_text(program)
