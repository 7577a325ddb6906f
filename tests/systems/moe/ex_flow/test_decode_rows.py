"""The program of decoding steps: legal, one all-to-all of tokens a layer where they stay, two where they come home."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.ir import verify
from meshwright.ir.text import from_text, to_text
from meshwright.systems.moe.ex_flow.decode_rows import decoding

LAYERS, STEPS, RANKS = 3, 2, 2


@pytest.mark.parametrize("stays", [True, False])
def test_tokens_that_stay_are_sent_once_a_layer(stays: bool) -> None:
    program = decoding(RANKS, LAYERS, STEPS, stays)
    verify(program)
    names = Counter(program.tables.effects[each].name for each in program.columns.effect.tolist())
    assert names["SEND_ROWS"] == RANKS * LAYERS * STEPS
    assert names["RETURN_ROWS"] == (0 if stays else RANKS * LAYERS * STEPS)
    assert names["GATHER_CONTEXTS"] == (RANKS * STEPS if stays else 0)
    assert names["PROMPT_SEND_ROWS"] == names["PROMPT_RETURN_ROWS"] == RANKS * LAYERS
    assert names["PROMPT_GATHER_CONTEXTS"] == (RANKS if stays else 0)


def test_the_text_of_it_is_read_again() -> None:
    program = decoding(RANKS, LAYERS, STEPS, stays=True)
    assert to_text(from_text(to_text(program))) == to_text(program)
    assert "vocabulary ex_flow" in to_text(program)
