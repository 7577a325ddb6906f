"""FSMoE's closed forms on layers that can be reckoned by hand; chunks, holes and gradients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.error import PlanError
from meshwright.systems.moe.fs_moe.chunk_program import simulated_seconds
from meshwright.systems.moe.fs_moe.mechanism import (
    MOST_CHUNKS,
    ExpertLayer,
    LinearCost,
    best_chunks,
    binding_case,
    hole_seconds,
    layer_seconds,
    one_stream_seconds,
    partitioned,
)


def layer(sent: float, gathered: float, computed: float, startup: float = 0.0) -> ExpertLayer:
    """Whole seconds of one all-to-all, one exchange inside a node, and the experts."""
    return ExpertLayer(*(LinearCost(startup, 1.0, size) for size in (sent, gathered, computed, gathered)))


@pytest.mark.parametrize(
    ("sizes", "gradients_s", "case", "wanted"),
    [
        ((4, 1, 16), 0.0, 2, 4 / 2 * 2 + 1 / 2 * 2 + 16),  # experts bind
        ((4, 1, 16), 30.0, 1, 2 * 4 + 30.0),  # gradients do not go into the hole
        ((8, 2, 1), 0.0, 3, 16 + 2),  # all-to-alls
        ((2, 8, 1), 0.0, 4, 2 + 16),  # exchanges inside the node
    ],
)
def test_each_case_in_two_chunks(
    sizes: tuple[float, float, float], gradients_s: float, case: int, wanted: float
) -> None:
    one = layer(*sizes)
    assert binding_case(one.chunk(2), 2, gradients_s) == case
    assert layer_seconds(one, 2, gradients_s) == pytest.approx(wanted)


def test_one_chunk_is_one_after_the_other() -> None:
    one = layer(3, 2, 5, startup=0.5)
    assert layer_seconds(one, 1) == pytest.approx(2 * 3.5 + 2 * 2.5 + 5.5)
    assert one_stream_seconds(one, 1) == layer_seconds(one, 1) == pytest.approx(simulated_seconds(one, 1))


def test_startups_end_the_cutting() -> None:
    assert best_chunks(layer(4, 1, 16)) == MOST_CHUNKS
    assert best_chunks(layer(4, 1, 16, startup=1.0)) < MOST_CHUNKS
    assert best_chunks(layer(4, 1, 16, startup=100.0)) == 1


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), st.integers(1, 8), st.floats(0.0, 20.0))
def test_a_schedule_is_never_behind_the_closed_form(
    sizes: list[float], chunks: int, gradients_s: float
) -> None:
    """The form counts as unhidden what a list schedule may still hide, and is exact where experts bind."""
    one = layer(*sizes)
    simulated = simulated_seconds(one, chunks, gradients_s)
    between_s = 2 * one.all_to_all.seconds() + gradients_s
    assert simulated >= max(between_s, one.expert.seconds()) * (1 - 1e-9)
    if binding_case(one.chunk(chunks), chunks) == 2 and not gradients_s:
        assert simulated >= layer_seconds(one, chunks) * (1 - 1e-9)


def test_gradients_fill_holes_before_they_cost_anything() -> None:
    layers = [layer(4, 1, 16).backward()] * 3
    hole = hole_seconds(layers[0], best_chunks(layers[0]))
    slots = partitioned(layers, [2.0] * 3, [5.0] * 3)
    assert slots.experts == (0.0, pytest.approx(min(5.0, hole)), pytest.approx(min(5.0, hole)))
    assert sum(slots.dense) + sum(slots.experts) + slots.rest_s == pytest.approx(15.0)
    large = partitioned(layers, [2.0] * 3, [100.0] * 3)
    assert large.experts[1:] == (pytest.approx(hole),) * 2 and large.dense[1:] == (2.0, 2.0)


@pytest.mark.parametrize(("chunks", "gradients_s"), [(0, 0.0), (1, -1.0)])
def test_no_chunks_and_negative_seconds_are_refused(chunks: int, gradients_s: float) -> None:
    with pytest.raises(PlanError, match="1 chunk or more"):
        layer_seconds(layer(1, 1, 1), chunks, gradients_s)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(PlanError, match="as many of each"):
        partitioned([layer(1, 1, 1)], [1.0, 2.0], [1.0])
