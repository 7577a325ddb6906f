"""Arrival-driven dispatch: each rule on a case small enough to be counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.kernel.kernel import compiled
from meshwright.lowering.order import by_hop, program_of_orders
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules.order import Compute, Schedule
from meshwright.specs.error import CountError, PlanError, ProgramError, ScheduleError
from meshwright.systems.pipeline.skip_pipe import mechanism
from meshwright.systems.pipeline.skip_pipe.card import network, published
from meshwright.systems.pipeline.skip_pipe.mechanism import (
    Dispatch,
    Injection,
    Network,
    PathPlan,
    SkipPipe,
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


@pytest.mark.parametrize(("num_stages", "skipped"), [(4, 1), (6, 2), (5, 3), (3, 0)])
def test_the_schedule_leaves_out_each_stage_equally_often(num_stages: int, skipped: int) -> None:
    middle = num_stages - 2
    orders = SkipPipe(skipped)(num_stages, 2 * middle)
    forwards = [[c.microbatch for c in row if c.name == "F"] for row in orders]
    assert [len(row) for row in forwards] == [2 * middle, *[2 * (middle - skipped)] * middle, 2 * middle]
    for row, made in zip(orders, forwards, strict=True):
        assert sorted(made) == sorted(c.microbatch for c in row if c.name == "B")


def test_a_program_has_the_devices_of_its_counts_and_paths_of_its_own() -> None:
    schedule = Schedule("skip_pipe", SkipPipe(skipped=1), skips_stages=True)
    program = program_of_orders(schedule.orders(4, 6), skips_stages=True)
    verify(Transfers()(program))
    assert program.num_lists == 4
    assert {tuple(hop.stage for hop in path) for path in program.tables.paths} == {(0, 1, 3), (0, 2, 3)}
    with pytest.raises(ScheduleError, match="never computes"):
        program_of_orders(schedule.orders(4, 6))


def test_sizes_of_hops_are_the_largest_of_any_path() -> None:
    program = program_of_orders(SkipPipe(skipped=1)(4, 2), skips_stages=True)
    assert by_hop(program, (1.0, 5.0, 3.0, 2.0)) == (1.0, 5.0, 2.0)


def test_the_first_and_the_last_stage_are_never_left_out() -> None:
    rows = [[Compute("F", 0, 0), Compute("B", 0, 0)], [Compute("F", 1, 1), Compute("B", 1, 1)]]
    with pytest.raises(ScheduleError, match="stage 1 never computes microbatch 0"):
        program_of_orders(rows, microbatches=2, skips_stages=True)
    with pytest.raises(CountError, match="0 to 2"):
        SkipPipe(skipped=3)(4, 4)


def test_the_network_is_the_users_own(tmp_path: Path) -> None:
    """A node that is far away holds up what passes it, so others come first."""
    (tmp_path / "links.csv").write_text("\n".join(["0,9,1,1", "9,0,9,9", "1,9,0,1", "1,9,1,0"]))
    near, far = SkipPipe()(4, 4), SkipPipe(network=str(tmp_path / "links.csv"))(4, 4)
    assert [c.microbatch for c in near[3] if c.name == "F"] != [c.microbatch for c in far[3] if c.name == "F"]
    with pytest.raises(PlanError, match="5 nodes"):
        SkipPipe(network=str(tmp_path / "links.csv"))(5, 3)
    with pytest.raises(PlanError, match="cannot be read"):
        SkipPipe(network="nowhere.csv")(4, 4)


def test_a_node_holds_no_more_than_its_memory() -> None:
    for row in SkipPipe(memory=2)(4, 8):
        held = most = 0
        for compute in row:
            held += 1 if compute.name == "F" else -1
            most = max(most, held)
        assert most <= 2
