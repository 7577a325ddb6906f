"""A plan priced by a routing trace: the busiest device decides, by the closed form, and placements change who it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import meshwright as mw
from meshwright.api.subjects.routing import with_capacity, with_routing
from meshwright.executor.ops.expert.capacity import kept_choices
from meshwright.lowering.lower import lower
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.routing.expert_placement import GroupShape, of_devices
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.training.expert_capacity import ExpertCapacity
from meshwright.stage.operator.layer import MicrobatchShape, activation_backward, activation_forward
from meshwright.stage.work import microbatch_shape

WIDTH, INNER, EXPERTS, PER_TOKEN, LAYERS, BATCH, SEQUENCE = 2048, 8192, 4, 2, 2, 64, 2048
MODEL = ModelSpec.decoder(LAYERS, WIDTH, 16, max_sequence_length=SEQUENCE).changed(
    architecture="mixtral", num_experts=EXPERTS, num_experts_per_token=PER_TOKEN, expert_intermediate_size=INNER,
)  # fmt: skip
PLAN = Plan.of(
    MODEL, mw.Cluster("2xH100"), Workload(BATCH, SEQUENCE), dp=2, ep=2, microbatch_size=8, dtype="bfloat16"
)
ROWS = BATCH * SEQUENCE // 2 * PER_TOKEN  # of a device, each layer, all microbatches
PRODUCTS = 3 * 2 * ROWS * 3 * WIDTH * INNER * LAYERS  # forward and two backward products of gate, up and down
SHAPE = MicrobatchShape(1, ROWS, "bfloat16")
FLOPS = PRODUCTS + LAYERS * sum(
    each(MODEL, ROWS, INNER, SHAPE).flops for each in (activation_forward, activation_backward)
)


def trace(experts: list[int]) -> RoutingTrace:
    """Tokens that go to these in both layers; only shares matter."""
    found = np.tile(np.array(experts)[:, None, None], (1, LAYERS, 1))
    return RoutingTrace(found, EXPERTS, (0, 1))


def expert_flops(plan: Plan) -> float:
    """Of a device in one step: all computes."""
    program = lower(plan, mw.catalog.find_schedule(plan.schedule))
    works, kinds = program.tables.works, program.columns.work.tolist()
    own = kinds[int(program.offsets[0]) : int(program.offsets[1])]
    return sum(works[number].flops for number in own if number >= 0)


def test_balanced_routing_is_no_routing() -> None:
    assert with_routing(PLAN, trace([0, 1, 2, 3])) == PLAN


def test_all_on_one_expert_takes_the_rows_of_all_devices() -> None:
    skewed = with_routing(PLAN, trace([1, 1]))
    assert skewed.workload.expert_load == 2
    assert expert_flops(skewed) - expert_flops(PLAN) == pytest.approx(FLOPS, rel=1e-12)
    times = [mw.simulate(plan).metadata["step"]["value"] for plan in (PLAN, skewed)]
    assert times[1] > times[0]
    half = with_routing(PLAN, trace([0, 0, 1, 2]))  # three quarters on the first device: 1.5 of an even share
    assert half.workload.expert_load == 1.5
    assert expert_flops(half) - expert_flops(PLAN) == pytest.approx(FLOPS / 2, rel=1e-12)


def test_a_placement_evens_devices_out(tmp_path: Path) -> None:
    skewed = trace([0, 0, 1, 1])
    assert with_routing(PLAN, skewed).workload.expert_load == 2
    path = tmp_path / "placement.experts.json"
    of_devices(np.array([[0, 1, 0, 1]] * LAYERS), GroupShape(2), (0, 1)).save(path)
    assert with_routing(PLAN, skewed, str(path)).workload.expert_load == 1
    assert (
        mw.simulate(PLAN, routing=skewed, expert_placement=str(path)).metadata["step"]
        == mw.simulate(PLAN).metadata["step"]
    )
    assert with_routing(PLAN, trace([0, 1] * 4), "eplb").workload.expert_load == 1
    of_devices(np.arange(EXPERTS)[None].repeat(LAYERS, 0), GroupShape(4), (0, 1)).save(path)
    with pytest.raises(SpecError, match="4 devices"):
        with_routing(PLAN, skewed, str(path))


def test_traces_of_other_models_are_refused() -> None:
    with pytest.raises(SpecError, match="plan's own model"):
        with_routing(PLAN, RoutingTrace(np.zeros((4, 3, 1), int), EXPERTS, (0, 1, 2)))
    with pytest.raises(SpecError, match="goes to expert 5"):
        with_routing(PLAN, RoutingTrace(np.full((4, 2, 1), 5), 6, (0, 1)))
    with pytest.raises(PlanError, match="experts are on 1 devices"):
        with_routing(PLAN, trace([1, 1])).changed(ep=1)
    with pytest.raises(SpecError, match="expert_load"):
        Workload(1, 1, expert_load=0.0)


def test_a_capacity_bounds_the_rows_of_every_device() -> None:
    skewed = with_routing(PLAN, trace([1, 1]))
    assert with_capacity(skewed, 1.5).workload.expert_load == 1.5
    assert with_capacity(skewed, 8).workload.expert_load == 2, "no row is there for padding"
    assert with_capacity(PLAN, 1.5) == PLAN, "balanced experts drop nothing"
    half = with_capacity(PLAN, 0.5)
    assert half.workload.expert_load == 0.5
    # every expert takes as much as it may; routers, copies and attention are as they were
    assert expert_flops(PLAN) - expert_flops(half) == pytest.approx(FLOPS / 2, rel=0.01)
    assert mw.simulate(half).metadata["step"]["value"] < mw.simulate(PLAN).metadata["step"]["value"]
    priced = mw.simulate(PLAN, routing=trace([1, 1]), capacity_factor=1.5)
    assert priced.metadata["step"] == mw.simulate(with_capacity(skewed, 1.5)).metadata["step"]
    with pytest.raises(SpecError, match="capacity factor of 0"):
        with_capacity(PLAN, 0.0)
    with pytest.raises(SpecError, match="has none"):
        with_capacity(Plan.of(ModelSpec.decoder(2, 32, 4), mw.Cluster("2xcpu"), Workload(4, 8)), 1.0)


def test_full_experts_are_priced_with_the_rows_that_the_executor_keeps() -> None:
    """Every expert of every sequence has more than its capacity: what is kept is what is priced, to the row."""
    length, num_experts, chosen, sequences, factor = 256, 8, 2, 3, 0.3
    capacity = ExpertCapacity(factor)
    most = capacity.of_sequence(length, num_experts, chosen)
    draws = torch.rand(sequences * length, num_experts, generator=torch.Generator().manual_seed(3))
    experts_TK = draws.argsort(dim=1)[:, :chosen]
    kept = int(kept_choices(experts_TK, num_experts, length, most).sum())
    model = PLAN.model.changed(
        num_experts=num_experts, num_experts_per_token=chosen, max_sequence_length=length
    )
    plan = Plan.of(model, mw.Cluster("1xcpu"), Workload(sequences, length), microbatch_size=sequences)
    shape = microbatch_shape(with_capacity(plan, factor))
    assert (
        kept == shape.num_expert_rows(chosen) == shape.num_own_rows(chosen) == sequences * num_experts * most
    )


def test_it_is_kept_in_the_plans_file(tmp_path: Path) -> None:
    skewed = with_routing(PLAN, trace([1, 1]))
    path = tmp_path / "plan.toml"
    skewed.save(path)
    assert Plan.load(path) == skewed
    assert "expert_load = 2.0" in path.read_text()
    PLAN.save(path)
    assert "expert_load" not in path.read_text()
