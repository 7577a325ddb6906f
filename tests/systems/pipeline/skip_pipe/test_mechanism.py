"""Arrival-driven dispatch: each rule on a case small enough to be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.ir.kernel.kernel import compiled
from meshwright.specs.error import ProgramError
from meshwright.systems.pipeline.skip_pipe import mechanism
from meshwright.systems.pipeline.skip_pipe.card import network, published
from meshwright.systems.pipeline.skip_pipe.mechanism import (
    Dispatch,
    Injection,
    Network,
    PathPlan,
    dispatch,
    repeated,
)


def two_nodes(*injections: Injection, memory: int = 3, message_s: float = 0.5) -> Dispatch:
    """Two nodes with forwards of a second: losses take 0.25 s, backwards 1.5 s."""
    return dispatch(Network(np.full((2, 2), message_s), np.ones(2), memory), injections)


def test_one_microbatch_goes_there_and_back() -> None:
    found = two_nodes(Injection((0, 1), 0.0))
    # forward, message, forward, message, loss, message, backward, message, backward
    assert found.start_s.tolist() == [[0.0, 1.5, 3.0, 3.75, 5.75]]
    assert found.node.tolist() == [[0, 1, 0, 1, 0]]
    assert found.span_s == 7.25


def test_a_node_is_busy_for_a_gap_behind_its_work_which_is_shorter_where_it_injects() -> None:
    found = two_nodes(Injection((0, 1), 0.0), Injection((0, 1), 0.0))
    assert found.start_s[1, 0] == pytest.approx(1.0 + 0.09)
    # the second one is there at 2.59; the first is under way from 1.5 to 2.5, and its gap ends at 2.63
    assert found.ready_s[1, 1] == pytest.approx(2.59)
    assert found.start_s[1, 1] == pytest.approx(2.63)


def test_what_arrives_first_is_first_and_an_injection_is_behind_it() -> None:
    late = Injection((0, 1), 3.0)  # when the loss of the other one arrives
    found = two_nodes(late, Injection((0, 1), 0.0))
    assert found.start_s[1, 2] == 3.0
    assert found.start_s[0, 0] == pytest.approx(3.25 + 0.13)


def test_a_forward_without_memory_is_refused_until_a_backward_begins() -> None:
    found = two_nodes(Injection((0, 1), 0.0), Injection((0, 1), 5.0), memory=1)
    # refused at 5.0, 5.1 .. 5.7; at 5.8 the backward of 5.75 has begun, and what is due meanwhile waits for its gap
    assert found.start_s[0, 4] == 5.75
    assert found.start_s[1, 0] == pytest.approx(5.75 + 1.5 + 0.13)


def test_a_later_round_waits_for_the_first_ones_return() -> None:
    free = two_nodes(Injection((0, 1), 0.0), Injection((0, 1), 5.0))
    held = two_nodes(Injection((0, 1), 0.0), Injection((0, 1), 5.0, opener=0))
    assert free.start_s[1, 0] == 5.0
    # nobody looks at it again before the backward of second 5 pushes it behind its gap
    assert held.start_s[1, 0] >= held.start_s[0, 4]


def test_what_its_second_leaves_undone_is_lost() -> None:
    with pytest.raises(ProgramError, match=r"microbatches \[1\] are never finished"):
        two_nodes(Injection((0, 1), 0.0), Injection((0, 1), 2.0, opener=0))


def test_paths_of_different_length_are_refused() -> None:
    with pytest.raises(ProgramError, match="one length"):
        two_nodes(Injection((0, 1), 0.0), Injection((0,), 0.0))


def test_the_compiled_kernel_gives_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    injections = published("colliding").injections()
    monkeypatch.setattr(
        mechanism,
        "call",
        lambda kernel, rows, inputs, outputs: kernel(*inputs, *outputs),
    )
    plain = dispatch(network(), injections)
    monkeypatch.setattr(
        mechanism,
        "call",
        lambda kernel, rows, inputs, outputs: compiled(kernel)(*inputs, *outputs),
    )
    assert (dispatch(network(), injections).start_s == plain.start_s).all()


PATHS = ((0, 2), (1, 2), (0, 3))


def test_places_count_paths_of_one_node() -> None:
    assert PathPlan(PATHS, 1.0).places() == (0, 0, 1)


def test_rounds_follow_one_another_and_wait_for_the_first() -> None:
    plan = PathPlan(PATHS, spacing_s=0.5, num_rounds=2, round_s=3.0)
    assert plan.injections() == (
        Injection((0, 2), 0.0),
        Injection((0, 2), 3.0, opener=0),
        Injection((1, 2), 0.0),
        Injection((1, 2), 3.0, opener=2),
        Injection((0, 3), 0.5),
        Injection((0, 3), 3.5, opener=4),
    )


def test_repeated_paths_stand_together() -> None:
    assert repeated(PATHS, 2) == ((0, 2), (0, 2), (1, 2), (1, 2), (0, 3), (0, 3))
