"""Microbatches that pass the same stages on different devices: paths, copies, reductions in one order, whole plans."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Hop, ParameterGroup
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.gradient_norm import ClipGradients
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules import Compute, registered
from meshwright.specs import Cluster
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError, ScheduleError
from tests.lowering.plans import DENSE, TIED, lowered, plan

# Two devices with both stages each; microbatch 0 goes down, 1 and 2 go up.
BOTH_WAYS = [
    [("F", 0, 0), ("F", 1, 1), ("B", 1, 1), ("F", 1, 2), ("B", 1, 2), ("B", 0, 0)],
    [("F", 0, 1), ("F", 0, 2), ("F", 1, 0), ("B", 1, 0), ("B", 0, 1), ("B", 0, 2)],
]


def orders() -> list[list[Compute]]:
    return [[Compute(*each) for each in row] for row in BOTH_WAYS]


def dualpipe(p: int, m: int, tied: bool = False, dp: int = 1) -> Program:
    groups = [ParameterGroup(f"stage{s}", (s,), 4, ("dp",)) for s in range(p)]
    groups += [ParameterGroup("tied", (0, p - 1), 4, ("dp",))] if tied else []
    program = program_of_orders(
        registered()["dualpipe"].orders(p, m), groups=groups, collapsed=[Axis("dp", dp, False)]
    )
    return OptimizerStep()(Transfers()(ReduceGradients()(program)))


def named(program: Program, name: str, device: int) -> list[Any]:
    return [view for view in program.instructions(device) if view.name == name]


def test_every_microbatch_has_the_way_that_the_lists_say() -> None:
    program = program_of_orders(orders())
    tables = program.tables
    assert tables.paths == ((Hop(0, 0), Hop(1, 1)), (Hop(0, 1), Hop(1, 0)))
    assert [m.path for m in tables.microbatches] == [0, 1, 1]
    assert tables.devices_of_stage == ((0, 1), (0, 1))
    verify(Transfers()(program))


def test_a_copy_on_each_device_is_reduced_and_stepped_there() -> None:
    groups = [ParameterGroup(f"g{s}", (s,), 4, ()) for s in range(2)]
    program = OptimizerStep()(Transfers()(ReduceGradients()(program_of_orders(orders(), groups=groups))))
    verify(program)
    for device in (0, 1):
        assert {view.stage for view in named(program, "STEP", device)} == {0, 1}
        reductions = named(program, "REDUCE_GRAD", device)
        assert [(view.stage, view.exchange.ends) for view in reductions] == [(0, (0, 1)), (1, (0, 1))]
    for stage in (0, 1):  # the copies' contributions together are all microbatches, each once
        backward = [view.microbatch for d in (0, 1) for view in named(program, "B", d) if view.stage == stage]
        assert sorted(backward) == [0, 1, 2]


def test_a_copy_that_nobody_reduces_is_refused() -> None:
    groups = [ParameterGroup(f"g{s}", (s,), 4, ()) for s in range(2)]
    with pytest.raises(ProgramError, match="copies of g0, g1, but nothing reduces"):
        verify(OptimizerStep()(Transfers()(program_of_orders(orders(), groups=groups))))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("p, m, dp", [(2, 4, 1), (4, 8, 2), (6, 12, 1), (8, 17, 2)])
def test_reductions_between_two_devices_stand_in_one_order(p: int, m: int, dp: int, tied: bool) -> None:
    """A device and its mirror end their stages in opposite order; each would wait for the other for ever."""
    program = dualpipe(p, m, tied, dp)
    for host in HOSTS:
        verify(program, host)
    for device in range(p // 2):
        ours, theirs = (
            [(view.stage, view.part) for view in named(program, "REDUCE_GRAD", d)]
            for d in (device, p - 1 - device)
        )
        assert ours == theirs and {stage for stage, _ in ours} == {device, p - 1 - device}
        assert len(ours) == 2 + (tied and device == 0)


def test_a_norm_counts_each_group_on_one_device() -> None:
    program = ClipGradients()(dualpipe(4, 8, tied=True))
    verify(program)
    effects, groups = program.tables.effects, program.tables.groups_of_stage
    read = [
        groups[view.stage][pattern.offset]
        for device in range(4)
        for view in named(program, "NORM", device)
        for pattern in effects[program.columns.effect[view.row]].reads
        if pattern.kind == "reduced_gradient"
    ]
    assert sorted(read) == list(range(5))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"sharding": "zero1"},
        {"sharding": "zero2", "overlap": ("reduce", "gather")},
        {"sharding": "zero3"},
        {"sharding": "zero1", "sharding_degree": 2},
        {"recompute": "full"},
        {"recompute": "full", "recompute_blocks": (1, 0, 0, 1)},
        {"overlap": ()},
        {"tp": 2, "sequence_parallel": True},
    ],
    ids=str,
)
def test_whole_plans_are_proven(choices: dict[str, Any], tied: bool) -> None:
    given = plan(TIED if tied else DENSE, pp=4, dp=4, batch=32, schedule="dualpipe", **choices)
    for host in HOSTS:
        verify(lowered(given), host)
        verify(lowered(given, None), host)


def test_every_device_holds_two_stages_and_their_states() -> None:
    """Bytes of parameters, gradients and optimizer state on a device are those of its stage and of its mirror's."""
    two, one = (plan(pp=4, batch=8, schedule=name) for name in ("dualpipe", "zb_h1"))
    sizes = {row.kind: row.by_index for row in lowered(one, None).tables.value_bytes}
    assert {row.kind: row.by_index for row in lowered(two, None).tables.value_bytes} == sizes
    cluster = Cluster("4xcpu")
    ours, theirs = (estimate_memory(each, cluster, registered()[each.schedule]) for each in (two, one))
    for kind in ("parameters", "optimizer state", "gradients"):
        once = [dict(device.holders)[kind] for device in theirs.devices]
        assert [dict(device.holders)[kind] for device in ours.devices] == [
            once[d] + once[3 - d] for d in range(4)
        ], kind


def test_state_that_is_shared_along_dp_only_is_reduced_in_two_levels() -> None:
    """A reduce-scatter over all copies would leave each a part of what it needs."""
    program = lowered(plan(pp=4, dp=2, batch=16, schedule="dualpipe", sharding="zero1"), None)
    found = {view.exchange for d in range(4) for view in named(program, "REDUCE_GRAD", d)}
    assert {(exchange.axes, exchange.algorithm) for exchange in found} == {
        (("pp", "dp"), "all_reduce.two_level")
    }


def test_an_odd_pipeline_is_refused() -> None:
    with pytest.raises(ScheduleError, match="takes multiples of 2 devices and was asked for 3"):
        lowered(plan(pp=3, batch=6, schedule="dualpipe"), None)
