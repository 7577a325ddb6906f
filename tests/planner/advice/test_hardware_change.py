"""Changes of hardware: the steps are those of `predict` on the changed cluster, sorted, and none where nothing helps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from meshwright.planner.advice.hardware_change import HardwareChange, hardware_changes, helps_most
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.predicted import predict
from meshwright.schedules.order import Schedule, registered
from meshwright.specs import Cluster, ClusterSpec, Link, ModelSpec, Plan, PlanError, Workload
from meshwright.specs.plan.prediction import Prediction

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
NODE, NETWORK = "twice the bandwidth of links inside a node", "twice the bandwidth between nodes"
LATENCY, MEMORY = "half the latency of links", "twice the memory"
STREAMS, FLOPS = "twice the memory bandwidth", "twice the peak FLOP/s"


@dataclass(frozen=True)
class Planned:
    plan: Plan
    step: Prediction
    schedule: Schedule = registered()["1f1b"]
    composed_s: float = float("nan")


def given(name: str = "2x8xH100", sequence: int = 4096, **choices: Any) -> tuple[Plan, ClusterSpec]:
    model = ModelSpec.decoder(
        4, 4096, 32, num_kv_heads=choices.pop("num_kv_heads", 8), intermediate_size=14336, vocabulary_size=32768,
        max_sequence_length=8192,
    )  # fmt: skip
    cluster = Cluster(name)
    return Plan.of(model, cluster, Workload(64, sequence), **{**MIXED, **choices}), cluster


def by_name(found: tuple[HardwareChange, ...]) -> dict[str, HardwareChange]:
    return {each.name: each for each in found}


def doubled(cluster: ClusterSpec, what: str) -> ClusterSpec:
    """The same change, made by hand."""
    device, (inner, *outer) = cluster.devices[0], cluster.levels
    if what == NODE:
        return replace(cluster, levels=(replace(inner, bandwidth_bytes_per_s=9e11), *outer))
    if what == NETWORK:
        return replace(cluster, levels=(inner, replace(outer[0], bandwidth_bytes_per_s=1e11)))
    if what == STREAMS:
        faster = replace(device, memory_bandwidth_bytes_per_s=6.7e12)
    else:
        faster = replace(device, flops_per_s={name: 2 * rate for name, rate in device.flops_per_s.items()})
    return replace(cluster, devices=(faster,) * cluster.num_devices)


@pytest.mark.parametrize("choices", [{"tp": 2, "overlap": ()}, {"sharding": "zero3"}, {"pp": 2, "cp": 2}])
def test_each_step_is_the_prediction_on_the_changed_cluster(choices: dict[str, Any]) -> None:
    plan, cluster = given(**choices)
    found, now_s = by_name(hardware_changes(plan, cluster)), predict(plan, cluster).step.value
    for name in (NODE, NETWORK, STREAMS, FLOPS):
        changed_s = predict(plan, doubled(cluster, name)).step.value
        assert found[name].step_s == pytest.approx(changed_s, rel=1e-12)
        assert found[name].gain == pytest.approx(now_s / changed_s - 1)
        assert found[name].gain > -1e-9  # better hardware never hurts


def test_the_most_helpful_is_first_and_half_of_the_step_at_most() -> None:
    plan, cluster = given(tp=2)
    gains = [each.gain for each in hardware_changes(plan, cluster)]
    assert gains == sorted(gains, reverse=True) and gains[0] <= 1.0 + 1e-9


def test_links_help_where_they_are_waited_for() -> None:
    exposed, cluster = given("8x1xH100", overlap=())  # with eight NICs a node, NVLink is what holds a ring up
    found = by_name(hardware_changes(exposed, cluster))
    assert found[NETWORK].gain > 0.05 > found[NODE].gain
    inside, cluster = given("8xH100", tp=8, overlap=())
    found = by_name(hardware_changes(inside, cluster))
    assert NETWORK not in found and found[NODE].gain > 0.05


def test_latency_counts_where_messages_are_small() -> None:
    gains = []
    for sequence in (128, 8192):
        plan, cluster = given("2x8xH100", sequence, tp=16, dp=1, num_kv_heads=16)
        gains.append(by_name(hardware_changes(plan, cluster))[LATENCY].gain)
    assert gains[0] > 2 * gains[1] > 0


def test_memory_helps_by_what_did_not_fit() -> None:
    plan, cluster = given("8xH100", sequence=8192, microbatch_size=8, recompute="full")
    schedule = registered()[plan.schedule]

    def bytes_of(each: Plan) -> float:
        memory = estimate_memory(each, cluster, schedule)
        return memory.allocated_bytes + memory.context_bytes

    light, heavy = bytes_of(plan), bytes_of(plan.changed(recompute="none"))
    assert light < heavy
    small = replace(cluster.devices[0], memory_bytes=int(max(light, 0.9 * heavy)))
    tight = replace(cluster, devices=(small,) * 8)
    found = by_name(hardware_changes(plan, tight))[MEMORY]
    assert found.used_for == "recompute none" and found.gain > 0.1
    unchanged_s = predict(plan.changed(recompute="none"), cluster).step.value
    assert found.step_s == pytest.approx(unchanged_s)
    assert found == by_name(hardware_changes(plan, cluster, capacity_bytes=small.memory_bytes))[MEMORY]
    roomy = replace(cluster.devices[0], memory_bytes=int(100 * heavy))  # all of it fits already
    assert MEMORY not in by_name(hardware_changes(plan, replace(cluster, devices=(roomy,) * 8)))


def test_wires_of_single_pairs_are_changed_with_their_level() -> None:
    plan, cluster = given("2x2xH100", pp=2, dp=1, tp=2, overlap=())
    slow = tuple(Link(f"device {a}", f"device {b}", 1e9, 1e-3) for a, b in ((0, 2), (2, 0), (1, 3), (3, 1)))
    found = by_name(hardware_changes(plan, replace(cluster, links=slow)))
    assert found[NETWORK].gain > 0.3 > found[NODE].gain


def test_a_device_without_measured_steps_is_priced_by_its_data_sheet() -> None:
    plan, cluster = given("8xMI300X", tp=8)
    found = by_name(hardware_changes(plan, cluster))
    assert found[FLOPS].gain > 0.1 and found[NODE].gain > 0.05 and found[LATENCY].gain > 0


def test_helps_most_is_the_first_or_nothing() -> None:
    plan, cluster = given(tp=2)
    step = predict(plan, cluster).step
    best = helps_most(Planned(plan, step), cluster)
    assert best == hardware_changes(plan, cluster)[0]
    assert best is not None and best.name in best.sentence and "% faster" in best.sentence
    # a step that no change reaches
    assert helps_most(Planned(plan, Prediction.within(step.value / 10, 0.1, step.basis)), cluster) is None


def test_processes_on_cpus_are_not_changed() -> None:
    cluster = Cluster("2xcpu")
    plan = Plan.of(ModelSpec.decoder(2, 64, 2), cluster, Workload(4, 16))
    assert helps_most(Planned(plan, Prediction.within(1.0, 0.1, "interpolated")), cluster) is None
    with pytest.raises(PlanError, match="cpu"):
        hardware_changes(plan, cluster)
