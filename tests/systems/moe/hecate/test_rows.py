"""The program of some steps is legal for any copies, and sends what the copies say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir import verify
from meshwright.ir.text import from_text, to_text
from meshwright.systems.moe.hecate.mechanism import Move, moves_of, owned
from meshwright.systems.moe.hecate.rows import training_steps


@settings(max_examples=10)
@given(st.integers(0, 999), st.integers(1, 3))
def test_any_copies_make_a_legal_program(seed: int, steps: int) -> None:
    draw, owners = np.random.default_rng(seed), np.repeat(np.arange(3), 2)
    moves = [moves_of(owners, (draw.random((6, 3)) < 0.4) | owned(owners, 3)) for _ in range(steps)]
    program = training_steps(3, moves)
    verify(program)
    names = [program.tables.effects[each].name for each in program.columns.effect.tolist()]
    num_moves = sum(map(len, moves))
    assert names.count("SEND_EXPERT") == names.count("SEND_EXPERT_GRADIENT") == num_moves
    assert names.count("SEND_ROWS") == names.count("RECV_RESULTS") == 6 * steps


def test_the_text_of_it_is_read_again() -> None:
    program = training_steps(2, [[Move(0, 0, 1)], []])
    assert to_text(from_text(to_text(program))) == to_text(program)
    assert "vocabulary hecate" in to_text(program)


@pytest.mark.parametrize("steps", [1, 2])
def test_without_copies_nothing_of_experts_is_sent(steps: int) -> None:
    program = training_steps(2, [[]] * steps)
    assert not any("EXPERT" in program.tables.effects[each].name and "SEND" in program.tables.effects[each].name
                   for each in program.columns.effect.tolist())  # fmt: skip
