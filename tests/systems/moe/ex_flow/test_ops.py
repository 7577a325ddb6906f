"""One rank's handlers by hand: who is sent where, what is seen, and that contexts which nobody brought are no numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from meshwright.systems.moe.ex_flow.ops import (
    DecoderShape,
    attend,
    begin_tokens,
    experts_here,
    keep_contexts,
    pack_contexts,
)

SHAPE = DecoderShape(layers=2, experts=4, sequences=4, prompt=3, steps=2)


def context(rank: int, devices: list[int]) -> SimpleNamespace:
    options = {"shape": SHAPE.__dict__, "devices": [devices] * SHAPE.layers, "ranks": 2}
    return SimpleNamespace(options=options, rank=rank)


def row(part: int) -> SimpleNamespace:
    return SimpleNamespace(part=part)


def test_sequences_are_at_home_and_rows_go_to_the_ranks_of_their_experts() -> None:
    here = context(1, [0, 1, 0, 1])
    rows, contexts = begin_tokens(here, row(0), ())
    assert (rows[:, 0] // SHAPE.positions).tolist() == [2, 2, 2, 3, 3, 3]
    assert (rows[:, 0] % SHAPE.positions).tolist() == [0, 1, 2] * 2
    assert contexts.isnan().all()
    sorted_rows, leaving, new = attend(here, row(0), (rows, contexts))
    assert leaving.sum() == len(rows) and sorted(sorted_rows[:, 0]) == sorted(rows[:, 0])
    for rank, part in enumerate(sorted_rows.split(leaving.tolist())):
        made = experts_here(context(rank, [0, 1, 0, 1]), row(0), (part,))[0]
        assert torch.equal(made[:, 0], part[:, 0]) and (made[:, 1:] != part[:, 1:]).any(1).all()
    assert torch.equal(new[:, 0], rows[:, 0]) and not sorted_rows.isnan().any()


def test_a_row_of_an_expert_that_is_elsewhere_is_noticed() -> None:
    rows, _ = begin_tokens(context(0, [0, 0, 0, 0]), row(0), ())
    with pytest.raises(AssertionError, match="is elsewhere"):
        experts_here(context(0, [1, 1, 1, 1]), row(0), (rows,))


def test_a_token_sees_its_past_which_is_not_a_number_where_nobody_brought_it() -> None:
    here = context(0, [0, 0, 0, 0])
    rows, contexts = begin_tokens(here, row(0), ())
    together, _, new = attend(here, row(0), (rows, contexts))
    last = rows[:, 0] % SHAPE.positions == 2
    alone, *_ = attend(here, row(0), (rows[last], contexts))
    assert alone[:, 1:].isnan().all(), "the past is not here"
    packed, to_all = pack_contexts(here, row(0), (new, new))
    assert to_all.tolist() == [2 * len(new)] * 2
    (kept,) = keep_contexts(here, row(0), (contexts, packed))
    seen, *_ = attend(here, row(0), (rows[last], kept))
    expected = {number: values for number, *values in together.tolist()}
    for number, *values in seen.tolist():
        assert values == pytest.approx(expected[number], abs=1e-12)
