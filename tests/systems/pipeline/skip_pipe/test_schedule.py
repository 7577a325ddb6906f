"""SkipPipe as a plan's schedule: whose paths leave out what, on the nodes and links of the plan's own cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import catalog
from meshwright.ir.judge.verify import verify
from meshwright.lowering.order import by_hop, program_of_orders
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.order import Compute, Orders, Schedule
from meshwright.schedules.pipeline_times import PipelineTimes
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, Workload
from meshwright.specs.cluster.device import Link
from meshwright.specs.error import CountError, PlanError, ScheduleError
from meshwright.systems.pipeline.skip_pipe.schedule import SkipPipe

MODEL = ModelSpec.decoder(6, 1024, 16, max_sequence_length=1024, vocabulary_size=1024)
CITY = (0, 0, 1, 1, 0, 1)  # of every node
FAR_BYTES_PER_S, FAR_S = 20e6, 0.04  # between cities


def cities(far_s: float = FAR_S) -> ClusterSpec:
    """Six nodes of one GPU in two cities."""
    pairs = [(a, b) for a in range(6) for b in range(6) if CITY[a] != CITY[b]]
    links = tuple(Link(f"device {a}", f"device {b}", FAR_BYTES_PER_S, far_s, f"{a} to {b}") for a, b in pairs)
    return replace(Cluster("6x1xA100-80"), name="two cities", links=links)


def planned(cluster: ClusterSpec, schedule: str, order: tuple[int, ...] = ()) -> Predicted:
    plan = Plan.of(
        MODEL, cluster, Workload(16, 1024), schedule=schedule, pp=6, microbatch_size=1, device_order=order,
        dtype="bfloat16",
    )  # fmt: skip
    return predict(plan, cluster, schedule=catalog.find_schedule(plan.schedule))


def orders(found: Predicted) -> Orders:
    return found.schedule.orders(6, 16)


@pytest.mark.parametrize(("num_stages", "skipped"), [(4, 1), (6, 2), (5, 2), (3, 0)])
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
    for skipped in (2, 3):  # with both of the middle left out of every microbatch nobody would train them
        with pytest.raises(CountError, match=rf"0 to 1; take pp of {skipped + 3} or more"):
            SkipPipe(skipped)(4, 4)


def test_the_network_is_the_users_own(tmp_path: Path) -> None:
    """A node that is far away holds up what passes it, so others come first."""
    (tmp_path / "links.csv").write_text("\n".join(["0,9,1,1", "9,0,9,9", "1,9,0,1", "1,9,1,0"]))
    near, far = SkipPipe()(4, 4), SkipPipe(network=str(tmp_path / "links.csv"))(4, 4)
    assert [c.microbatch for c in near[3] if c.name == "F"] != [c.microbatch for c in far[3] if c.name == "F"]
    with pytest.raises(PlanError, match="for 5 stages"):
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


def test_a_plan_takes_the_seconds_of_its_own_cluster() -> None:
    """Nodes of the plan's file, where its order puts stages: as if a table of these seconds had been given."""
    near, far = planned(Cluster("6x1xA100-80"), "skip_pipe"), planned(cities(), "skip_pipe")
    assert orders(near) != orders(far)
    placed = planned(cities(), "skip_pipe", (0, 1, 4, 2, 3, 5))
    assert orders(placed) != orders(far)
    function = SkipPipe().timed(times_of(placed))
    assert orders(placed) == function(6, 16)
    # what the order was made for is what the plan takes: neither the default's nor the other cluster's is as fast
    as_default = replace(far, schedule=Schedule("default", SkipPipe(), skips_stages=True))
    assert far.step.value < 0.95 * as_default.step.value
    assert placed.step.value < far.step.value


def times_of(found: Predicted) -> PipelineTimes:
    from meshwright.prediction.step_program import pipeline_times

    return pipeline_times(found.plan, found.cluster, found.pricing)


def test_what_is_said_beside_the_cluster_stands(tmp_path: Path) -> None:
    times = PipelineTimes((1.0, 2.0, 1.0, 1.0), ((0.5,) * 4,) * 4)
    assert SkipPipe().timed(times).times == times
    assert SkipPipe(message_s=3.0).timed(times).times == PipelineTimes(times.forward_s, ((3.0,) * 4,) * 4)
    assert SkipPipe(forward_s=3.0).timed(times).times == PipelineTimes((3.0,) * 4, times.message_s)
    (tmp_path / "links.csv").write_text("\n".join(["0,9,1,1", "9,0,9,9", "1,9,0,1", "1,9,1,0"]))
    told = SkipPipe(network=str(tmp_path / "links.csv")).timed(times).times
    assert told.forward_s == times.forward_s and told.message_s[1] == (9.0, 0.0, 9.0, 9.0)


def test_nodes_of_unequal_speed_are_unequal() -> None:
    slow = PipelineTimes((1.0, 4.0, 1.0, 1.0), ((0.25,) * 4,) * 4)
    assert SkipPipe().timed(slow)(4, 8) != SkipPipe()(4, 8)
    with pytest.raises(PlanError, match="above 0 for each"):
        SkipPipe().timed(PipelineTimes((0.0,) * 4, slow.message_s))(4, 8)


def test_it_is_a_schedule_of_the_verbs_on_that_cluster(tmp_path: Path) -> None:
    plan = planned(cities(), "skip_pipe(skipped=2)").plan
    trace = mw.simulate(plan, cluster=cities())
    assert {len(path) for path in trace.program.tables.paths} == {4}
    assert mw.check(plan, cluster=cities()).is_accepted
