"""Gradient reduction and step: over exactly the copies, once a parameter, tied ones included; a quotient is its expansion."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.ir.random_program import random_orders

from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Exchange, Kind, ParameterGroup
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.value_space import effect_of
from meshwright.lowering.lower import lower
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, registered
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import ProgramError, ScheduleError
from meshwright.stage.mesh import shard_axes

DP = Axis("dp", 3, False)


def trained(name: str, p: int, m: int, groups: list[ParameterGroup], dp: int = 1) -> Program:
    """A schedule with transfers, reductions and steps."""
    orders = registered()[name].orders(p, m)
    program = program_of_orders(orders, groups=groups, collapsed=[Axis("dp", dp, False)])
    return Transfers()(OptimizerStep()(ReduceGradients()(program)))


def names(program: Program, device: int) -> list[str]:
    return [
        view.text for view in program.instructions(device) if view.kind in (Kind.COMPUTE, Kind.COLLECTIVE)
    ]


def test_a_bucket_stands_behind_its_last_contribution() -> None:
    groups = [ParameterGroup(f"g{s}.{k}", (s,), 4, ("dp",)) for s in range(2) for k in range(2)]
    program = trained("1f1b", 2, 2, groups, 2)
    assert names(program, 0)[-4:] == ["0B1", "0REDUCE_GRAD", "0REDUCE_GRAD.1", "0STEP"]
    reduction = next(view for view in program.instructions(0) if view.name == "REDUCE_GRAD")
    assert reduction.stream == "reduce" and reduction.exchange == Exchange(("dp",), algorithm="ring")
    verify(program)


def test_nobody_to_reduce_with() -> None:
    program = trained(
        "1f1b", 2, 2, [ParameterGroup("g0", (0,), 4, ("dp",)), ParameterGroup("g1", (1,), 4, ("dp",))]
    )
    assert names(program, 0)[-2:] == ["0B1", "0STEP"]
    verify(program)


@pytest.mark.parametrize("dp", [1, 2])
def test_tied_parameters_are_reduced_between_their_stages(dp: int) -> None:
    """Without copies along dp they are the only ones that are reduced; the step waits for that and for nothing else."""
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",) * (dp > 1)) for s in range(3)]
    groups.append(ParameterGroup("tied", (0, 2), 8, ("dp",) * (dp > 1)))
    program = trained("1f1b", 3, 2, groups, dp)
    verify(program)
    tied = [
        view
        for d in range(3)
        for view in program.instructions(d)
        if view.name == "REDUCE_GRAD" and view.part == 1
    ]
    assert [view.device for view in tied] == [0, 2]
    assert {view.exchange.ends for view in tied if view.exchange} == {(0, 2)}
    assert sum(view.name == "REDUCE_GRAD" for d in range(3) for view in program.instructions(d)) == (
        2 if dp == 1 else 5
    )
    step = next(view for view in program.instructions(0) if view.name == "STEP")
    reduced = {p.index for p in effect_of(program, step.row).reads if p.kind == "reduced_gradient"}
    assert reduced == ({"place"} if dp == 1 else {"groups"})


@pytest.mark.parametrize(
    ("schedule", "algorithms"),
    [("1f1b", {(0, 2): "all_reduce.two_level", None: "reduce_scatter"}), ("zbv", {None: "reduce_scatter"})],
)
def test_a_tie_between_devices_is_not_scattered(schedule: str, algorithms: dict[object, str]) -> None:
    """State is shared along dp; a table on two devices of the pipeline has copies beyond that, on one device it has not."""
    p, stages = (3, 3) if schedule == "1f1b" else (2, 4)
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",)) for s in range(stages)]
    groups.append(ParameterGroup("tied", (0, stages - 1), 8, ("dp",)))
    orders = registered()[schedule].orders(p, 4)
    program = program_of_orders(orders, groups=groups, collapsed=[DP])
    program = ReduceGradients(dict.fromkeys(range(len(groups)), "reduce_scatter"))(program)
    assert {exchange.ends: exchange.algorithm for exchange in program.tables.exchanges} == algorithms


@pytest.mark.parametrize("in_segments", [False, True])
def test_what_stages_reduce_together_waits_for_what_each_reduces_alone(in_segments: bool) -> None:
    """A device that began with the tied table would wait for all other reductions of the other stage."""
    model = ModelSpec.decoder(4, 64, 4, has_tied_embeddings=True)
    cluster = Cluster("1x8xH100")
    plan = Plan.of(model, cluster, Workload(8, 64), pp=2, dp=2, tp=2, microbatch_size=1, overlap=())
    program = lower(plan, registered()["1f1b"], in_segments=in_segments)
    for device in range(program.num_lists):
        reduced = [view.exchange for view in program.instructions(device) if view.name == "REDUCE_GRAD"]
        across = [exchange.ends is not None for exchange in reduced if exchange]
        assert len(across) > 1 and across == sorted(across) and across[-1]


def test_tied_parameters_on_one_device_are_stepped_once() -> None:
    """A path there and back puts the first and the last stage on one device: one gradient, one reduction, one step."""
    orders = [[Compute(n, s, 0) for n, s in (("F", 0), ("F", 3), ("B", 3), ("B", 0))]]
    orders.append([Compute(n, s, 0) for n, s in (("F", 1), ("F", 2), ("B", 2), ("B", 1))])
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",)) for s in range(4)] + [
        ParameterGroup("tied", (0, 3), 8, ("dp",))
    ]
    program = program_of_orders(orders, groups=groups, collapsed=[DP])
    program = Transfers()(OptimizerStep()(ReduceGradients()(program)))
    verify(program)
    expected = ["0B0", "0REDUCE_GRAD", "3REDUCE_GRAD", "3REDUCE_GRAD.1", "0STEP", "3STEP"]
    assert sorted(names(program, 0)[2:]) == sorted(expected + ["3B0"])
    stepped = [view for view in program.instructions(0) if view.name == "STEP"]
    writes = [program.tables.effects[program.columns.effect[view.row]].writes for view in stepped]
    assert [len(w) for w in writes] == [2, 2], (
        "stage 0 steps its own group only, stage 3 its own and the tied one"
    )


def test_a_reduction_over_the_wrong_axes_is_refused() -> None:
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",)) for s in range(2)]
    program = trained("1f1b", 2, 2, groups, 2)
    wrong = program.with_tables(
        exchanges=tuple(
            e._replace(axes=("pp",)) if e.axes == ("dp",) else e for e in program.tables.exchanges
        )
    )
    with pytest.raises(ProgramError):
        verify(wrong)


def test_a_stage_without_a_contribution_is_named() -> None:
    forward = program_of_orders(
        [[Compute("F", 0, 0)]], groups=[ParameterGroup("g0", (0,), 4, ("dp",))], collapsed=[DP]
    )
    with pytest.raises(ScheduleError, match="nothing on stage 0 adds to the gradient of g0"):
        ReduceGradients()(forward)


def test_a_step_without_the_reduction_of_its_copies_is_refused() -> None:
    """Neither a row nor a duty says REDUCE_GRAD, so nothing is missing but the sum itself."""
    groups = [ParameterGroup("g0", (0,), 4, ("dp",))]
    orders = registered()["1f1b"].orders(1, 2)
    verify(OptimizerStep()(program_of_orders(orders, groups=groups, collapsed=[DP._replace(size=1)])))
    with pytest.raises(ProgramError, match="copies of g0, but nothing reduces"):
        verify(OptimizerStep()(program_of_orders(orders, groups=groups, collapsed=[DP])))


@pytest.mark.parametrize("seed", range(40))
def test_a_quotient_runs_as_its_expansion(seed: int) -> None:
    """Times of every copy are those of the collapsed list, and the proofs hold for both."""
    rng = Random(seed)
    p, m, v, dp = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 2), rng.randint(2, 4)
    groups = [ParameterGroup(f"g{s}", (s,), 4, ("dp",)) for s in range(p * v)]
    if p > 1 and rng.random() < 0.4:
        groups.append(ParameterGroup("tied", (0, p * v - 1), 8, ("dp",)))
    orders = random_orders(rng, p, m, v, rng.random() < 0.5)
    program = program_of_orders(orders, groups=groups, collapsed=[Axis("dp", dp, False)])
    program = Transfers()(OptimizerStep()(ReduceGradients()(program)))
    full = program.expand("dp")
    by_effect = np.random.default_rng(seed).random((2, len(program.tables.effects)))
    for host in ("asynchronous", "in_order"):
        small = replay(
            wire(program), *by_effect, program.columns.effect.astype(np.int32), iterations=2, host=host
        )
        large = replay(wire(full), *by_effect, full.columns.effect.astype(np.int32), iterations=2, host=host)
        for one, other in zip(small, large, strict=True):
            for device in range(p):
                own = one[:, program.offsets[device] : program.offsets[device + 1]]
                for copy in range(dp):
                    k = device * dp + copy
                    np.testing.assert_allclose(
                        other[:, full.offsets[k] : full.offsets[k + 1]], own, rtol=0, atol=1e-12
                    )
        quotient, expanded = verify(program, host), verify(full, host)
        np.testing.assert_allclose(np.repeat(quotient.peak_bytes, dp, axis=0), expanded.peak_bytes)


@pytest.mark.parametrize(
    "choices",
    [
        {"pp": 2, "dp": 2, "sharding": "zero1"},
        {"pp": 2, "dp": 4, "sharding": "zero2"},
        {"pp": 2, "dp": 4, "sharding": "zero3", "sharding_degree": 2},
        {"pp": 2, "dp": 2, "sharding": "zero1", "schedule": "dualpipe", "microbatch_size": 1},
        {"pp": 2, "dp": 2, "sharding": "zero1", "schedule": "zbv"},
        {"pp": 2, "dp": 2, "sharding": "none"},
    ],
)
def test_what_is_priced_as_scattered_is_what_the_executor_scatters(choices: dict[str, Any]) -> None:
    """The executor scatters where those who reduce are those who share the state (`executor.group_exchange`), else it sums
    whole gradients."""
    model = replace(ModelSpec.decoder(4, 32, 4, vocabulary_size=32), has_tied_embeddings=True)
    plan = Plan.of(model, Cluster(f"{choices['pp'] * choices['dp']}xcpu"), Workload(16, 8), **choices)
    program = lower(plan, registered()[plan.schedule])
    shards = tuple(axis for axis in shard_axes(plan) if program.axis(axis).size > 1)
    found = set()
    for number in np.flatnonzero(program.columns.exchange >= 0):
        view = program.row(int(number))
        if view.name != "REDUCE_GRAD" or view.exchange is None:
            continue
        is_team = bool(shards) and view.exchange.ends is None and view.exchange.axes == shards
        assert (view.exchange.algorithm == "reduce_scatter") == is_team, view.exchange
        found.add(view.exchange.algorithm)
    assert found


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_a_tied_table_holds_up_nobody_who_scatters_every_microbatch(sharding: str, schedule: str) -> None:
    """Stages in pieces of a layer: what is tied waits for the first stage's backward, which waits for scatters behind it."""
    model = ModelSpec.decoder(8, 64, 4, has_tied_embeddings=True)
    choices: dict[str, Any] = {
        "sharding": sharding,
        "schedule": schedule,
        "overlap": ("reduce",),
        "num_chunks": 1,
    }
    plan = Plan.of(model, Cluster("4xH100"), Workload(8, 64), pp=2, dp=2, microbatch_size=2, **choices)
    verify(lower(plan, registered()[schedule], pieces=(4, 4)))
