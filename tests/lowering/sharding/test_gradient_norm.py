"""Clipping and post-validation as programs: who is counted, what waits, what it costs in device time and memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lowering.plans import plan

import meshwright as mw
from meshwright.ir.judge.metrics import device_time_s, period_s, span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import ParameterGroup, ValueBytes
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.gradient_norm import ClipGradients, PostValidate
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.specs import PassOption, PlanError, Workload
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import ProgramError
from meshwright.specs.plan.plan import Plan

STEP_S, NORM_S = 3.0, 0.5


def program_of(name: str = "1f1b", p: int = 4, m: int = 8, tied: bool = False, replicas: int = 1) -> Program:
    groups = [ParameterGroup(f"stage{s}", (s,), 0, ("dp",)) for s in range(p)]
    groups += [ParameterGroup("tied", (0, p - 1), 0, ("dp",))] if tied else []
    program = program_of_orders(
        registered()[name].orders(p, m), groups=groups, collapsed=[Axis("dp", replicas, False)]
    )
    sizes = (ValueBytes("parameter", (2.0,)), ValueBytes("optimizer_state", (12.0,)))
    return OptimizerStep()(Transfers()(ReduceGradients()(program.with_tables(value_bytes=sizes))))


def trace_of(program: Program, host: str = "asynchronous") -> Trace:
    """F 1, B 2 or I and W 1, a step of three and half a second until the norm has been round."""
    cost = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "STEP": STEP_S, "REDUCE_NORM": NORM_S}
    seconds = np.array([cost.get(effect.name, 0.0) for effect in program.tables.effects])
    effect = program.columns.effect.astype(np.int32)
    times = replay(wire(program), seconds, np.zeros_like(seconds), effect, iterations=3, host=host)
    return Trace(program, *times, "max-plus")


def names_of(program: Program, device: int) -> list[str]:
    return [view.text for view in program.instructions(device)]


def counted(program: Program) -> list[str]:
    """Groups that any NORM reads, over all devices."""
    t, found = program.tables, []
    for device in range(program.num_lists):
        for view in program.instructions(device):
            if view.name == "NORM":
                places = {p.offset for p in t.effects[program.columns.effect[view.row]].reads}
                found += [t.groups[t.groups_of_stage[view.stage][place]].name for place in places]
    return sorted(found)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_group_is_counted_once(tied: bool, replicas: int) -> None:
    program = ClipGradients()(program_of(tied=tied, replicas=replicas))
    for host in HOSTS:
        verify(program, host)
    assert counted(program) == sorted(group.name for group in program.tables.groups)
    assert names_of(program, 0)[-3:] == ["0NORM", "0REDUCE_NORM0", "0STEP"]
    assert from_text(to_text(program)).digest() == program.digest()


def test_the_step_does_not_wait_for_the_norm() -> None:
    """Devices that have finished step while the last one still computes; its own step runs beside the norm's way."""
    for name in ("1f1b", "zb_h1", "gpipe"):
        clipped = ClipGradients()(program_of(name))
        early = PostValidate()(clipped)
        for host in HOSTS:
            verify(early, host)
            ordinary, validated = trace_of(clipped, host), trace_of(early, host)
            # the last device has its step beside the norm; what is left is the longer of the two
            assert device_time_s(validated) == pytest.approx(device_time_s(ordinary) - min(STEP_S, NORM_S))
            assert span_s(validated) < span_s(ordinary)
        assert names_of(early, 0)[-4:] == ["0NORM", "0REDUCE_NORM0", "0STEP", "0VALIDATE"]


def test_a_schedule_without_bubbles_steps_while_it_waits() -> None:
    """ZB-H2 on four devices: they end one forward after the other, so a step of three forwards is hidden wholly."""
    clipped = ClipGradients()(program_of("zb_h2", 4, 12))
    ordinary, validated = trace_of(clipped), trace_of(PostValidate()(clipped))
    assert (device_time_s(ordinary), device_time_s(validated)) == (42.5, 39.5)
    assert (period_s(ordinary), period_s(validated)) == (42.5, 39.5)


def test_the_copy_is_as_large_as_what_is_stepped() -> None:
    clipped = ClipGradients()(program_of())
    early = PostValidate()(clipped)
    sizes = {row.kind: row.by_index for row in early.tables.value_bytes}
    assert set(sizes["step_copy"]) == {14.0}
    assert verify(early).peak_of() >= verify(clipped).peak_of() + 14.0


def test_a_device_with_two_stages_sends_one_sum() -> None:
    program = program_of_orders(
        registered()["interleaved_1f1b"].orders(2, 4),
        groups=[ParameterGroup(f"s{s}", (s,)) for s in range(4)],
    )
    program = PostValidate()(ClipGradients()(OptimizerStep()(Transfers()(program))))
    for host in HOSTS:
        verify(program, host)
    end = ["0NORM", "2NORM", "0REDUCE_NORM0", "0STEP", "2STEP", "0VALIDATE", "2VALIDATE"]
    assert names_of(program, 0)[-7:] == end


def test_a_plan_names_them() -> None:
    clip, early = PassOption("clip_gradients", {"max_norm": 0.5}), PassOption("post_validation")
    verify(lower(plan(pp=4, dp=2, passes=(clip, early)), registered()["1f1b"]))
    for choices in (
        {"dp": 2, "tp": 2},
        {"dp": 2, "sharding": "zero1"},
        {"dp": 4, "tp": 2, "sharding": "zero3", "sharding_degree": 2},
    ):
        divided = lower(plan(pp=4, passes=(clip,), **choices), registered()["1f1b"])
        verify(divided)
        sums = [e for e in divided.tables.exchanges if e.axes[0] == "pp" and e.ends is None and e.shift == 0]
        axes = {"tp"} if choices.get("tp") else set()
        axes |= {"dp" if "sharding_degree" not in choices else "dp2"} if "sharding" in choices else set()
        assert {*sums[0].axes} == {"pp", *axes}
    for choices, words in (
        ({"passes": (early,)}, "without clip_gradients"),
        ({"passes": (clip, early), "dp": 2, "sharding": "zero1"}, "sharding none"),
        ({"passes": (PassOption("clip_gradients", {"max_norm": 0.0}),)}, "above 0"),
    ):
        with pytest.raises(PlanError, match=words):
            lower(plan(pp=4, **choices), registered()["1f1b"])  # type: ignore[arg-type]


def test_a_plan_on_gpus_has_a_shorter_device_time() -> None:
    workload, cluster = Workload(global_batch=16, sequence_length=2048), mw.Cluster("8xH100")
    seconds = []
    for passes in (
        (PassOption("clip_gradients"),),
        (PassOption("clip_gradients"), PassOption("post_validation")),
    ):
        chosen = Plan.of(
            mw.Model("Llama-2-7B"),
            cluster,
            workload,
            pp=8,
            dp=1,
            dtype="bfloat16",
            schedule="1f1b",
            passes=passes,
        )
        seconds.append(device_time_s(mw.simulate(chosen)))
    assert seconds[1] < seconds[0]


def test_what_has_no_norm_is_refused() -> None:
    with pytest.raises(ProgramError, match="OptimizerStep before"):
        ClipGradients()(Transfers()(program_of_orders(registered()["1f1b"].orders(2, 2))))
    with pytest.raises(ProgramError, match="ClipGradients before"):
        PostValidate()(program_of())
    divided = program_of_orders(
        registered()["1f1b"].orders(2, 2), groups=[ParameterGroup(f"s{s}", (s,)) for s in range(2)],
        collapsed=[Axis("tp", 2, False)],
    )  # fmt: skip
    with pytest.raises(ProgramError, match="divided"):
        ClipGradients()(OptimizerStep()(Transfers()(divided)))
