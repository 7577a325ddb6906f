"""One prediction for everybody: planner, simulator and `predict` say the same of plans on GPUs; what was never seen
is refused unless asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.costs.pricing import pricing_of
from meshwright.costs.roofline import UNCERTAINTY, Roofline
from meshwright.ir.judge import metrics
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import Rejection
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, OutOfMemoryError, Plan, PlanError, SpecError, Workload
from meshwright.specs.config.source import load_model

MODEL = ModelSpec.decoder(4, 1024, 8, intermediate_size=4096, max_sequence_length=2048)
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
NEVER_SEEN = ("8xL40S", "8xRTX-4090", "8xMI250X")


def planned(cluster: str = "8xH100", **choices: Any) -> Plan:
    return Plan.of(MODEL, Cluster(cluster), Workload(32, 2048), **{**MIXED, **choices})


def predicted(plan: Plan, **options: Any) -> Predicted:
    return predict(plan, Cluster(plan.cluster), **options)


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"sharding": "zero3", "overlap": ("reduce", "gather")},
        {"pp": 2, "schedule": "interleaved_1f1b"},
        {"pp": 2, "tp": 2, "sequence_parallel": True, "sharding": "zero1"},
        {"cluster": "2x8xH100", "pp": 2, "recompute": "full"},
        {"cluster": "8xB200", "float8": "tensorwise"},
        {"cluster": "8xA100-80", "software": "eager"},
        {"cluster": "2xH100", "dtype": "float32", "master_dtype": ""},
    ],
)
def test_planner_and_simulator_say_what_predict_step_says(choices: dict[str, Any]) -> None:
    plan = planned(**choices)
    composed = predicted(plan)
    want, trace = composed.refined(), api.simulate(plan)
    assert want.step.value == pytest.approx(composed.step.value, rel=0.001)
    for said in (want.trace().metadata["step"], trace.metadata["step"]):
        assert said["value"] == pytest.approx(want.step.value, rel=1e-12)
        assert said["low"] == pytest.approx(want.step.low, rel=1e-12)
        assert said["high"] == pytest.approx(want.step.high, rel=1e-12)
        assert said["basis"] == want.step.basis
    assert trace.metadata["parts"] == want.parts
    assert trace.digest == want.program.digest()


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_the_step_does_not_depend_on_how_many_are_shown(iterations: int) -> None:
    plan = planned(pp=2)
    assert api.simulate(plan, iterations=iterations).metadata["step"]["value"] == pytest.approx(
        predicted(plan).step.value, rel=1e-12
    )


def test_iterations_follow_each_other_at_the_distance_of_the_step() -> None:
    plan = planned()
    trace = api.simulate(plan)
    overhead = trace.metadata["step"]["overhead"]
    assert overhead > 0
    assert metrics.period_s(trace) == pytest.approx(predicted(plan).step.value, rel=1e-12)
    between = trace.start_s[2].min() - trace.end_s[1].max()
    assert between == pytest.approx(overhead, rel=1e-6)  # nothing else lies there with one stage


def test_a_format_in_which_no_step_ran_is_extrapolated() -> None:
    assert predicted(planned()).step.basis == "interpolated"
    plain = planned(dtype="float32", master_dtype="")
    assert predicted(plain).step.basis == "extrapolated"
    assert any("float32" in line for line in pricing_of(plain, Cluster("8xH100")).assumptions)


@pytest.mark.parametrize("cluster", NEVER_SEEN)
def test_a_chip_that_was_never_seen_is_refused_unless_asked_for(cluster: str) -> None:
    plan = planned(cluster)
    for refused in (lambda: predicted(plan), lambda: api.simulate(plan)):
        with pytest.raises(PlanError, match="--extrapolate"):
            refused()
    step = predicted(plan, extrapolate=True).step
    assert step.basis == "never seen"
    assert step.high - step.value >= UNCERTAINTY * step.value * (1 - 1e-12)
    assert api.simulate(plan, extrapolate=True).metadata["step"]["value"] == pytest.approx(
        step.value, rel=1e-12
    )


@pytest.mark.parametrize("name", ["MI300X", "MI325X", "MI350X", "MI355X"])
def test_a_chip_of_which_kernels_were_published_needs_no_flag_and_says_how_sure_it_is(name: str) -> None:
    plan = planned(f"8x{name}", pp=2, tp=2, sequence_parallel=True)
    found = predicted(plan)
    assert found.step.basis == "never seen" and not found.pricing.is_measured
    width = found.pricing.width
    assert width is not None
    assert math.log(found.step.high / found.step.value) > width.high * width.spreads["unseen"]
    assert any(f"no step of {name} was ever measured" in line for line in found.assumptions)
    assert predicted(plan, extrapolate=True).step == found.step


def test_newer_and_larger_chips_of_a_family_are_faster() -> None:
    steps = [predicted(planned(f"8x{name}")).step.value for name in ("MI300X", "MI325X", "MI350X", "MI355X")]
    assert steps == sorted(steps, reverse=True) and len(set(steps)) == 4


def test_extrapolating_changes_nothing_where_steps_were_measured() -> None:
    assert predicted(planned(), extrapolate=True).step == predicted(planned()).step


def test_an_extrapolated_step_is_made_of_its_parts() -> None:
    plan = planned("8xMI250X", pp=2, tp=2, sequence_parallel=True)
    found = predicted(plan, extrapolate=True)
    own = sum(seconds for name, seconds in found.parts.items() if not name.isupper())
    assert own == pytest.approx(found.step.value, rel=1e-9)
    assert {"matmul", "attention", "stream", "exchanges inside, host", "waiting"} <= set(found.parts)


def test_an_extrapolated_product_takes_what_the_data_sheet_says() -> None:
    cluster = Cluster("8xMI250X")
    pricing = pricing_of(planned("8xMI250X"), cluster, extrapolate=True)
    assert isinstance(pricing.costs, Roofline) and not pricing.is_measured
    twice = tuple(
        replace(d, flops_per_s={k: 2 * v for k, v in d.flops_per_s.items()}) for d in cluster.devices
    )
    faster = pricing_of(planned("8xMI250X"), replace(cluster, devices=twice), extrapolate=True)
    program = api.subject(planned("8xMI250X"), extrapolate=True).program
    work = next(work for work in program.tables.works if work.name == "F")
    assert faster.parts(work)["matmul"] == pytest.approx(pricing.parts(work)["matmul"] / 2, rel=0.2)
    assert faster.parts(work)["stream"] == pricing.parts(work)["stream"]


def test_a_format_without_a_peak_is_refused_even_so() -> None:
    plan = planned("8xA100-80", float8="tensorwise")
    for extrapolate in (False, True):
        with pytest.raises(SpecError, match="no peak rate for float8"):
            _ = predicted(plan, extrapolate=extrapolate).step


def test_assumptions_name_software_overlap_and_what_is_counted() -> None:
    plan = planned(sharding="zero3", overlap=("reduce",))
    text = "\n".join(pricing_of(plan, Cluster("8xH100")).assumptions)
    assert "'compiled'" in text and "the plan names none" in text
    assert "the reduction of gradients, the gathering of parameters" in text
    assert "between two steps" in text and "not counted" in text
    named = pricing_of(plan.changed(software="eager", overlap=()), Cluster("8xH100")).assumptions
    assert not any("names none" in line for line in named) and any("'eager'" in line for line in named)


def test_experts_on_several_devices_are_said_to_get_as_many_tokens() -> None:
    model = load_model("qwen3-30b-a3b")
    for ep in (1, 8):
        plan = Plan.of(model, Cluster("8xH100"), Workload(32, 2048), dp=8, ep=ep)
        lines = pricing_of(plan, Cluster("8xH100")).assumptions
        assert any("experts evenly" in line and "of the 8 devices" in line for line in lines) == (ep > 1)


def test_a_machine_names_its_price_model() -> None:
    for name in ("8xH100", "8xMI300X"):
        assert Cluster(name).machine.price_model == "step" and Cluster(name).machine.unit == "GPU"
    for processes in (Cluster.detect(2), Cluster("2xcpu")):
        assert processes.machine.price_model == "profile" and processes.machine.is_here
    plan = Plan.of(MODEL, Cluster("2xcpu"), Workload(32, 2048))
    assert pricing_of(plan, Cluster("2xcpu")).width is None


def test_memory_of_gpu_plans_is_the_estimate() -> None:
    plan = planned(sharding="zero3")
    cluster, schedule = Cluster("8xH100"), registered()["1f1b"]
    memory = estimate_memory(plan, cluster, schedule)
    found = predicted(plan)
    assert found.memory == memory and found.peak_bytes == memory.allocated_bytes
    assert found.bound_bytes == memory.upper_bytes + memory.context_bytes > found.peak_bytes

    def on(memory_bytes: float) -> Rejection | None:
        devices = tuple(replace(device, memory_bytes=int(memory_bytes)) for device in cluster.devices)
        return predict(plan, replace(cluster, devices=devices)).rejected()

    needed = memory.allocated_bytes + memory.context_bytes
    assert on(needed + 1) is None
    miss = on(needed - 1e6)
    assert isinstance(miss, Rejection) and miss.needed_bytes == needed
    assert sum(size for _, size in miss.holders) == int(needed)
    assert "at worst" in miss.reason and miss.upper_bytes == found.bound_bytes


def test_check_judges_a_gpu_plan_by_the_estimate() -> None:
    plan = planned(sharding="zero1")
    proof = api.check(plan)
    assert proof and proof.fits and proof.fits_at_worst and proof.memory is not None
    assert max(proof.peak_bytes) == proof.memory.allocated_bytes + proof.memory.context_bytes
    assert len(str(proof)) < 400, "a verdict is printed, not the program that it is of"
    between = (max(proof.peak_bytes) + proof.memory.upper_bytes + proof.memory.context_bytes) / 2
    near = api.check(plan, memory_bytes=int(between))
    assert near.fits and not near.fits_at_worst
    tight = api.check(plan, memory_bytes=int(max(proof.peak_bytes)) - 10**6)
    assert tight.fits is False and isinstance(tight.error, OutOfMemoryError)
    assert api.check(planned("8xMI300X"))  # nothing is priced, so nothing has to be asked for
