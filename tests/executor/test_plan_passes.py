"""What a plan's passes change is what is executed: receives early and late bitwise the same, edges from a plan to gloo."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import meshwright as mw
from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.metrics import span_s
from meshwright.ir.timing.dependencies import dependencies
from meshwright.lowering.transfer.receive_place import PlaceReceives
from meshwright.specs import Cluster, ModelSpec, PassOption, Plan, PlanError, Workload
from tests.covering import always
from tests.training_case import ADAMW, Case, program_of, training_of

MODEL = ModelSpec.decoder(8, 16, 2, vocabulary_size=256, max_sequence_length=8)


def plan_of(*passes: PassOption, **choices: object) -> Plan:
    """Four stages on processes of this machine, four microbatches."""
    workload = Workload(global_batch=4, sequence_length=8)
    return Plan.of(MODEL, Cluster("4xcpu"), workload, pp=4, passes=passes, **choices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "case", always([Case("1f1b", 4, 6, optimizer=ADAMW), Case("zb_h1", 2, 4, num_replicas=2)], {0}), ids=str
)
def test_receives_early_and_late_give_bitwise_the_same(gloo_pool: Pool, case: Case) -> None:
    before = program_of(case)
    expected = run_training(before, training_of(case), 3, pool=gloo_pool)
    for ahead in (0, 3):
        program = PlaceReceives(ahead)(before)
        assert program.digest() != before.digest()
        result = run_training(program, training_of(case), 3, pool=gloo_pool)
        assert result.losses == expected.losses
        for name, value in result.parameters.items():
            assert torch.equal(value, expected.parameters[name])
        check_waits(result.trace)


def check_waits(trace: object) -> None:
    """No receive was posted before the compute that it waits for had ended."""
    assert isinstance(trace, mw.Trace) and len(trace.program.after)
    receive, compute = trace.program.after.T
    assert (trace.posted_s[:, receive] >= trace.end_s[:, compute]).all()
    assert len(dependencies(trace.program).row) > len(trace.program.after)


def test_a_plan_places_its_receives() -> None:
    """The plan simulated on GPUs: receives just in time cost time, one compute ahead hides them."""
    workload, cluster = Workload(global_batch=32, sequence_length=4096), mw.Cluster("32xH100")
    plan = Plan.of(mw.Model("Llama-2-7B"), cluster, workload, pp=4, dp=1, tp=8, dtype="bfloat16")
    seconds = {
        ahead: span_s(
            mw.simulate(plan.changed(passes=(PassOption("place_receives", {"computes_ahead": ahead}),)))
        )
        for ahead in (0, 1, 3)
    }
    assert seconds[0] > 1.001 * seconds[1]
    assert seconds[1] == pytest.approx(seconds[3]) == pytest.approx(span_s(mw.simulate(plan)))


def test_a_plan_connects_its_stages(gloo_pool: Pool) -> None:
    """Simulated, and trained by the same program; another schedule finds the same losses."""
    plan = plan_of(PassOption("connect_stages", {"layer_edges": "0>7 1>6 2>5 3>4"}))
    losses = []
    for schedule in ("1f1b", "gpipe"):
        done = train_plan(
            replace(plan, schedule=schedule), iterations=2, pool=gloo_pool, measures_memory=False
        )
        assert done.trace is not None
        names = {effect.name for effect in done.trace.program.tables.effects}
        assert {"SEND_SKIP", "RECV_SKIP_B"} <= names
        assert done.predicted.program.digest() == done.trace.program.digest()
        losses.append(done.result.losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    plain = train_plan(plan_of(), iterations=2, pool=gloo_pool, measures_memory=False)
    assert plain.result.losses != pytest.approx(losses[0], rel=1e-5)


def test_a_plan_clips_and_validates_later(gloo_pool: Pool) -> None:
    """Two plans that differ in when the norm is known train alike, bitwise; without a limit another result."""
    clip, early = PassOption("clip_gradients", {"max_norm": 0.25}), PassOption("post_validation")
    results = [
        train_plan(plan_of(*passes), iterations=3, pool=gloo_pool, measures_memory=False).result
        for passes in ((clip,), (clip, early), ())
    ]
    assert [it.num_undone > 0 for it in results[1].iterations] == [True] * 3
    assert results[0].losses == results[1].losses
    for name, value in results[0].parameters.items():
        assert torch.equal(value, results[1].parameters[name])
    assert any(not torch.equal(v, results[2].parameters[n]) for n, v in results[0].parameters.items())


def test_what_a_plan_cannot_connect_is_refused() -> None:
    for options, words in (
        ({"layer_edges": "7>0"}, "an earlier layer"),
        ({"layer_edge": "0>7"}, "layer_edges"),
    ):
        with pytest.raises(PlanError, match=words):
            mw.simulate(plan_of(PassOption("connect_stages", options)))
