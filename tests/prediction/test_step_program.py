"""Predicted steps: parts that add up, monotone where physics is, bubbles near their closed form, gathers that hide."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest

from meshwright.costs.step.profile import StepFit, Width, packaged_step_profile
from meshwright.costs.step.step_costs import StepConstants
from meshwright.lowering.lower import lower
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_part import is_beside
from meshwright.prediction.step_program import pipeline_times, schedule_of, simulated_s, step_program
from meshwright.prediction.step_trait import step_shares
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ClusterSpec, ModelSpec, Plan, Workload, load_model
from meshwright.specs.cluster.device import Link, device_presets
from meshwright.specs.error import MeshwrightError, PlanError, UnknownNameError
from meshwright.specs.plan.plan import PassOption
from meshwright.stage.piece import num_pieces

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
SHARDED = {"sharding": "zero3", "overlap": ("reduce", "gather")}
OFFLOADED = {"passes": ("offload_optimizer",)}
PIPELINE = {"pp": 4, "dp": 1, "overlap": ()}
FIT = packaged_step_profile().fit


def model(num_layers: int = 8, vocabulary_size: int = 1024, **fields: Any) -> ModelSpec:
    return ModelSpec.decoder(
        num_layers, 4096, 32, num_kv_heads=8, intermediate_size=14336, max_sequence_length=8192,
        vocabulary_size=vocabulary_size, **fields,
    )  # fmt: skip


def experts(num_layers: int = 2) -> ModelSpec:
    return load_model("mixtral-8x7b").changed(num_layers=num_layers)


def planned(
    cluster: str | ClusterSpec,
    of: ModelSpec | None = None,
    batch: int = 16,
    sequence: int = 4096,
    **choices: Any,
) -> tuple[Plan, ClusterSpec]:
    found = Cluster(cluster)
    return Plan.of(of or model(), found, Workload(batch, sequence), **{**MIXED, **choices}), found


def predicted(*arguments: Any, **choices: Any) -> Predicted:
    return predict(*planned(*arguments, **choices))


def busy_s(estimate: Predicted) -> float:
    idle = ("waiting", "step overhead")
    return sum(
        seconds for name, seconds in estimate.parts.items() if name not in idle and not is_beside(name)
    )


# ------------------------------------------------------------------------------------------ parts


@pytest.mark.parametrize(
    ("cluster", "choices"),
    [
        ("8xH100", {}),
        ("8xH100", {"pp": 4, "schedule": "interleaved_1f1b"}),
        ("8xH100", {"pp": 2, "overlap": (), "sharding": "zero1"}),
        ("2x8xH100", SHARDED),
        ("8xH100", {"tp": 4, "sequence_parallel": True, "overlap": ("tp",)}),
        ("8xH100", {"cp": 2, "recompute": "full"}),
        ("8xB200", {"float8": "tensorwise"}),
        ("8xA100-80", {"software": "eager", "recompute": "selective"}),
        ("8xH100", {"sharding": "zero1", **OFFLOADED}),
        ("8xH100", {"pp": 2, "schedule": "interleaved_1f1b", **OFFLOADED}),
        ("8xH100", {"pp": 4, "vocabulary": "one_barrier"}),
    ],
)
def test_what_computes_take_and_wait_for_is_the_step(cluster: str, choices: dict[str, Any]) -> None:
    found = predicted(cluster, **choices)
    on_computes = sum(seconds for name, seconds in found.parts.items() if not is_beside(name))
    assert on_computes == pytest.approx(found.step.value, rel=1e-9)
    assert list(found.parts.values()) == sorted(found.parts.values(), reverse=True)
    assert found.num_rows == step_program(*planned(cluster, **choices)).wiring.program.num_rows


def test_loads_and_stores_are_beside_and_what_waits_for_them_has_a_name() -> None:
    """Computes take what they take without; of what moves to and from the host the step waits for what they do not hide."""
    kept, moved = (predicted("8xH100", sharding="zero1", **choices) for choices in ({}, OFFLOADED))
    for kind in ("matmul", "attention", "stream", "gap"):
        assert moved.parts[kind] == pytest.approx(kept.parts[kind], rel=1e-9)
    on_link = [moved.exchanges[name] for name in ("LOAD_STATE", "STORE_STATE")]
    assert [each.seconds for each in on_link] == [moved.parts["LOAD_STATE"], moved.parts["STORE_STATE"]]
    load, store = (
        on_link  # stage by stage: one is stored while the next is loaded, and the last passes beside what follows
    )
    assert load.exposed_s <= moved.parts["host memory"] < load.seconds + store.seconds / 4
    assert "host memory" not in kept.parts and kept.exchanges.keys() < moved.exchanges.keys()


def test_with_experts_and_tied_tables_parts_add_up_too() -> None:
    for of, choices in (
        (experts(), {"ep": 8}),
        (model(4, 65536, has_tied_embeddings=True), {"pp": 2, "sharding": "zero1"}),
    ):
        found = predicted("8xH100", of, **choices)
        total = sum(seconds for name, seconds in found.parts.items() if not is_beside(name))
        assert total == pytest.approx(found.step.value, rel=1e-9)


def test_a_prediction_is_the_fits_constants_simulated() -> None:
    plan, cluster = planned("8xH100")
    expected = simulated_s(step_program(plan, cluster), FIT.of("h100"))
    assert predict(plan, cluster).step.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("batch", [8, 64])
def test_the_steps_overhead_is_paid_once_whatever_the_number_of_microbatches(batch: int) -> None:
    made = step_program(*planned("8xH100", batch=batch))
    c = StepConstants()
    assert simulated_s(made, replace(c, step_s=1.0)) - simulated_s(
        made, replace(c, step_s=0.25)
    ) == pytest.approx(0.75)


@pytest.mark.parametrize("name", [each.name for each in fields(StepConstants)])
def test_a_larger_constant_never_makes_a_step_shorter(name: str) -> None:
    """On a plan that has all of them: experts over two nodes, float8, portable attention, gradients between nodes."""
    plan, cluster = planned(
        "8x4xH100", experts(), batch=32, tp=2, ep=8, float8="tensorwise", software="compiled", overlap=()
    )
    made, c = step_program(plan, cluster), FIT.of("h100")
    if name == "expert_s":
        c = replace(c, expert_s=1.0)
    assert simulated_s(made, replace(c, **{name: 1.5 * getattr(c, name)})) > simulated_s(made, c) * (1 + 1e-6)


def test_a_step_is_at_least_its_arithmetic_at_the_peak() -> None:
    plan, cluster = planned("8xH100", batch=64)
    tokens = plan.workload.global_batch * plan.workload.sequence_length
    flops = tokens * plan.model.train_flops_per_token(plan.workload.sequence_length)
    utilisation = flops / (
        8 * cluster.devices[0].peak_flops_per_s("bfloat16") * predict(plan, cluster).step.value
    )
    assert 0.2 < utilisation < 0.75


# ------------------------------------------------------------------------------------------ monotone


def test_a_slower_network_never_helps_and_slow_enough_hurts() -> None:
    for choices in ({}, SHARDED, {"sharding": "zero1", "overlap": ()}):
        steps = [
            predicted(Cluster("2x8xH100", nic=nic), **choices).step.value
            for nic in ("10Gb/s", "50Gb/s", "200Gb/s", "400Gb/s")
        ]
        assert steps == sorted(steps, reverse=True) and steps[0] > 1.2 * steps[-1]


def test_longer_microbatches_take_longer_and_use_the_device_better() -> None:
    lengths = (512, 1024, 2048, 4096)
    steps = [predicted("8xH100", batch=32, sequence=length).step.value for length in lengths]
    assert steps == sorted(steps)
    rates = [length / step for length, step in zip(lengths, steps, strict=True)]
    assert rates == sorted(rates)


def test_more_microbatches_more_layers_and_recompute_take_longer() -> None:
    base = predicted("8xH100").step.value
    assert predicted("8xH100", batch=32).step.value > 1.5 * base
    assert predicted("8xH100", model(16)).step.value > 1.5 * base
    selective = predicted("8xH100", recompute="selective").step.value
    full = predicted("8xH100", recompute="full").step.value
    assert base < selective < full < 1.45 * base


@pytest.mark.parametrize("choices", [{}, SHARDED, {"pp": 2, "tp": 2, "sequence_parallel": True}], ids=str)
def test_recompute_of_some_blocks_is_between_none_and_all(choices: dict[str, Any]) -> None:
    plan, cluster = planned("8xH100", **choices)
    steps = [predict(plan, cluster).step.value]
    for count in range(1, max(plan.layers_per_stage) + 1):
        counts = (count,) * plan.num_stages
        some = plan.changed(recompute="full", recompute_blocks=counts)
        steps.append(predict(some, cluster).step.value)
    assert steps == sorted(steps) and steps[0] < steps[1] < steps[-1]
    assert steps[-1] == predict(plan.changed(recompute="full"), cluster).step.value
    # with the last block its stage is recomputed wholly, ends and all
    growth = [after - before for before, after in pairwise(steps[:-1])]
    assert growth == pytest.approx([growth[0]] * len(growth), rel=0.05)


# ------------------------------------------------------------------------------------------ pipelines


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
@pytest.mark.parametrize("batch", [8, 32])
def test_on_equal_stages_the_bubble_is_near_its_closed_form(schedule: str, chunks: int, batch: int) -> None:
    """(p - 1) / (v m) of the computes (Narayanan et al., arXiv 2104.04473)."""
    found = predicted("4xH100", batch=batch, schedule=schedule, **PIPELINE)
    assert found.parts["waiting"] / busy_s(found) == pytest.approx(3 / (chunks * batch), rel=0.08)


def test_an_unequal_stage_holds_up_the_pipeline() -> None:
    equal = predicted("4xH100", batch=32, **PIPELINE).step.value
    late = predicted("4xH100", batch=32, layers_per_stage=(2, 2, 1, 3), **PIPELINE).step.value
    assert 1.3 * equal < late < 1.55 * equal


def test_a_schedule_may_be_given_instead_of_its_name() -> None:
    plan, cluster = planned("4xH100", **PIPELINE)
    unknown = plan.changed(schedule="ours")
    assert predict(unknown, cluster, schedule=registered()["1f1b"]).step == predict(plan, cluster).step


# ------------------------------------------------------------------------------------------ sharding


def test_gathers_hide_beside_large_microbatches_and_not_beside_tiny_ones() -> None:
    large = predicted("2x8xH100", sequence=8192, batch=32, **SHARDED)
    tiny = predicted("2x8xH100", sequence=256, batch=32, **SHARDED)
    for found in (large, tiny):
        assert found.parts["UNSHARD"] > 0
    assert large.parts["UNSHARD"] == pytest.approx(tiny.parts["UNSHARD"]), "the same parameters are gathered"
    assert large.parts["waiting"] < 0.3 * large.parts["UNSHARD"]
    assert tiny.parts["waiting"] > 0.5 * tiny.parts["UNSHARD"]


def test_gathers_that_are_not_beside_computes_are_waited_for() -> None:
    beside = predicted("8xH100", sharding="zero1", overlap=("reduce", "gather"))
    behind = predicted("8xH100", sharding="zero1", overlap=("reduce",))
    assert behind.step.value > beside.step.value
    assert behind.parts["waiting"] >= behind.parts["GATHER_PARAM"]


def test_copies_within_a_node_are_gathered_inside_it() -> None:
    """Then the network carries gradients only, once a step, and gathers of all microbatches stay on NVLink."""
    slow, fast = Cluster("2x8xH100", nic="25Gb/s"), Cluster("2x8xH100", nic="400Gb/s")
    inside = {"batch": 64, "sharding_degree": 8, **SHARDED}
    gathers = {
        (at, degree): predicted(at, batch=64, sharding_degree=degree, **SHARDED).parts["UNSHARD"]
        for at in (slow, fast)
        for degree in (8, 16)
    }
    near_slow, far_slow, near_fast, far_fast = gathers.values()
    assert near_slow == near_fast and far_slow > 4 * far_fast
    assert predicted(slow, **inside).step.value < predicted(slow, batch=64, **SHARDED).step.value
    alone = predicted("1x8xH100", batch=32, **SHARDED).parts["UNSHARD"]
    assert near_fast == pytest.approx(alone)
    assert predicted(slow, **inside).parts["REDUCE_GRAD"] > predicted(fast, **inside).parts["REDUCE_GRAD"]


@pytest.mark.parametrize("overlap", [("reduce",), ("reduce", "gather")])
def test_tied_tables_do_not_delay_the_first_forward_of_the_next_step(overlap: tuple[str, ...]) -> None:
    """The table is gathered in the turn of the embedding, not behind all blocks in that of the head."""
    own, tied = (
        predicted("8xH100", model(8, 131072, has_tied_embeddings=is_tied), sharding="zero1", overlap=overlap)
        for is_tied in (False, True)
    )
    assert tied.parts["GATHER_PARAM"] < own.parts["GATHER_PARAM"]
    assert tied.step.value <= own.step.value and tied.parts["waiting"] <= own.parts["waiting"] * 1.02


# ------------------------------------------------------------------------------------------ fits, basis, errors


def test_a_left_out_source_has_its_own_fit() -> None:
    plan, cluster = planned("8xH100")
    profile = packaged_step_profile()
    for source, fit in profile.left_out.items():
        found = predict(plan, cluster, left_out=source)
        assert found.step == predict(plan, cluster, fit=fit).step
    assert predict(plan, cluster).step == predict(plan, cluster, fit=profile.fit).step


def test_an_interval_is_as_wide_as_its_kinds_of_work_say_and_wider_where_extrapolated() -> None:
    fit = StepFit(FIT.constants, Width({"messages": 0.5, "products": 0.1, "unseen": 0.3}, -1.0, 2.0))
    for name, basis, least in (("8xH100", "interpolated", 0.0), ("8xGB300", "extrapolated", 0.3)):
        plan, cluster = planned(name)
        found = predict(plan, cluster, fit=fit)
        low, high = fit.width.ends(step_shares(plan, cluster, found.parts, found.step.basis))
        assert found.step.basis == basis and high >= math.exp(2.0 * least)
        assert (found.step.low, found.step.high) == pytest.approx(
            (low * found.step.value, high * found.step.value)
        )


def test_a_relative_of_a_measured_chip_is_priced_by_its_data_sheet() -> None:
    assert predicted("8xH200").step.value < predicted("8xH100").step.value < predicted("8xA100-80").step.value


@pytest.mark.parametrize("name", ["V100", "MI250X"])
def test_a_chip_without_a_relative_is_refused_with_what_to_do(name: str) -> None:
    assert name in device_presets()
    with pytest.raises(PlanError, match=f"measured on {name} or a relative of it") as told:
        predicted(f"2x{name}")
    assert "--extrapolate" in told.value.next and "H100" in told.value.allowed


def test_a_chip_that_nobody_measured_is_priced_by_its_data_sheet_where_that_is_accepted() -> None:
    plan, cluster = planned("8xMI250X", batch=64)
    found = predict(plan, cluster, extrapolate=True)
    tokens = plan.workload.global_batch * plan.workload.sequence_length
    flops = tokens * plan.model.train_flops_per_token(plan.workload.sequence_length)
    assert found.step.value > flops / (8 * cluster.devices[0].peak_flops_per_s("bfloat16"))
    assert found.step.basis == "never seen" and found.step.high >= 1.3 * found.step.value * (1 - 1e-12)
    on_computes = sum(seconds for name, seconds in found.parts.items() if not is_beside(name))
    assert on_computes == pytest.approx(found.step.value, rel=1e-9)
    measured = planned("8xH100")
    assert predict(*measured, extrapolate=True).step == predict(*measured).step


def test_a_format_in_which_no_step_ran_is_extrapolated() -> None:
    assert predicted("8xH100", dtype="float16").step.basis == "interpolated"
    assert predicted("8xH100", dtype="float32").step.basis == "extrapolated"


def test_float8_on_a_chip_without_it_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="A100-80 has no peak rate for float8"):
        _ = predicted("8xA100-80", float8="tensorwise").step


def test_an_unknown_schedule_source_and_family_are_refused() -> None:
    plan, cluster = planned("8xH100")
    with pytest.raises(PlanError, match="'nonsense' is not registered") as told:
        predict(plan.changed(schedule="nonsense"), cluster)
    assert "1f1b" in told.value.allowed and "pass the schedule" in told.value.next
    with pytest.raises(UnknownNameError, match="source of measured steps"):
        predict(plan, cluster, left_out="nobody")
    with pytest.raises(UnknownNameError, match="family of chips"):
        predict(plan, cluster, fit=StepFit({"a100": StepConstants()}, Width({})))


def test_the_program_is_as_fine_as_parameters_are_gathered() -> None:
    plan, cluster = planned("8xH100", **SHARDED)
    coarse = lower(plan, registered()[plan.schedule])
    assert step_program(plan, cluster).wiring.program.num_rows > 4 * coarse.num_rows


# ------------------------------------------------------------------------------------------ where devices stand

ELSEWHERE = {"mesh_order": ("dp", "pp", "cp", "tp"), "device_order": tuple(reversed(range(16)))}


CHAINS: tuple[dict[str, Any], ...] = (
    {"pp": 2, "tp": 2, "sharding": "zero1", "sequence_parallel": True},
    {"pp": 2, "cp": 2, "tp": 2, "context": "ulysses", "overlap": ("reduce", "gather")},
    {"pp": 2, "tp": 2, "schedule": "v_half", "num_chunks": 2, "token_parts": 2, "microbatch_size": 2},
    {"pp": 2, "ep": 4, "of": experts(), "recompute": "full"},
    {**SHARDED, "tp": 2, "sharding_degree": 4},
)


@pytest.mark.parametrize(
    ("choices", "in_segments"),
    [
        ({"pp": 2, "tp": 2, "vocabulary": "two_barriers"}, False),
        *((choices, each) for choices in CHAINS for each in (False, True)),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, dict) else str(case),
)
def test_no_program_says_where_its_devices_stand(choices: dict[str, Any], in_segments: bool) -> None:
    plan, _ = planned("2x8xH100", batch=64, **choices)
    programs = (
        lower(each, schedule_of(each), pieces=num_pieces(each), in_segments=in_segments)
        for each in (plan, plan.changed(**ELSEWHERE))
    )
    assert len({each.digest() for each in programs}) == 1


def test_plans_that_stand_elsewhere_share_a_program_that_somebody_holds_and_cost_what_they_do_apart() -> None:
    plan, cluster = planned("2x8xH100", pp=2, tp=4, sharding="zero1")
    other = plan.changed(mesh_order=ELSEWHERE["mesh_order"])
    held = predict(plan, cluster)
    beside = predict(other, cluster)
    assert held.made.wiring is beside.made.wiring
    assert held.step.value != beside.step.value
    for each in (held, beside):
        each.forget()
    alone = predict(other, cluster)
    assert alone.step == beside.step and alone.parts == beside.parts


def test_a_program_of_a_pass_that_the_plan_names_is_shared_with_none_elsewhere() -> None:
    plan, cluster = planned("2x8xH100", pp=2, tp=4, passes=(PassOption("place_receives"),))
    one, other = predict(plan, cluster), predict(plan.changed(mesh_order=ELSEWHERE["mesh_order"]), cluster)
    assert one.made.wiring is not other.made.wiring


def wired(cluster: ClusterSpec, one: int, other: int, latency_s: float = 0.04) -> ClusterSpec:
    """The cluster with a slow wire between two devices, both ways."""
    ends = ((one, other), (other, one))
    links = tuple(Link(f"device {a}", f"device {b}", 20e6, latency_s, f"{a} to {b}") for a, b in ends)
    return replace(cluster, links=links)


def test_times_of_a_pipeline_are_those_of_its_devices_and_links() -> None:
    """A wired pair takes its latency and bytes over its own rate, wherever the plan's order puts the stages."""
    plan, cluster = planned("4x1xA100-80", pp=4, dp=1, device_order=(3, 1, 2, 0), microbatch_size=1)
    found = predict(plan, wired(cluster, 0, 3))
    times = pipeline_times(plan, found.cluster, found.pricing)
    assert times.message_s[0][3] == times.message_s[3][0] > 0.04 + 4096 * 4096 * 2 / 20e6
    assert times.message_s[0][1] == times.message_s[1][2] < 0.01 and times.message_s[2][2] == 0.0
    further = predict(plan, wired(cluster, 0, 3, 0.54))
    longer_s = pipeline_times(plan, further.cluster, further.pricing).message_s[0][3]
    assert longer_s == pytest.approx(times.message_s[0][3] + 0.5)
    seconds = found.prices.seconds[found.prices.cost_of_row]
    forward_s = sum(seconds[row.row] for row in found.program.instructions(1) if row.name == "F")
    assert times.forward_s[1] == pytest.approx(forward_s / plan.num_microbatches)
    assert len(times.forward_s) == 4 and times.forward_s[3] > times.forward_s[1]  # the head


def test_of_replicas_the_slowest_message_counts() -> None:
    plan, cluster = planned("4x1xA100-80", pp=2, dp=2, microbatch_size=1)
    stage_of = {plan.device_at(pp=s, dp=d): s for s in range(2) for d in range(2)}
    one = plan.device_at(pp=0, dp=1)
    found = {}
    for other in set(range(4)) - {one}:
        made = predict(plan, wired(cluster, one, other))
        found[stage_of[other], other] = pipeline_times(plan, made.cluster, made.pricing).message_s[0][1]
    slow_s = found.pop((1, plan.device_at(pp=1, dp=1)))
    assert all(slow_s > 10 * other_s for other_s in found.values())  # which the pipeline does not use
