"""Advice on memory: what is called the largest fits and the next does not; room and need add up to the device."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import catalog
from meshwright.planner.advice.advice import SEQUENCE_STEP, advice_of, largest_of, memory_advice
from meshwright.planner.advice.device_advice import Advice
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.schedules.order import Schedule
from meshwright.specs import Cluster, ClusterSpec, Plan, PlanError, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def given(name: str = "8xH100", sequence: int = 4096, **choices: Any) -> tuple[Plan, ClusterSpec, Schedule]:
    cluster = Cluster(name)
    options = {"tp": 2, "sharding": "zero1", **MIXED, **choices}
    plan = Plan.of(load_model("llama-3.1-8b"), cluster, Workload(64, sequence), **options)
    return plan, cluster, catalog.find_schedule(plan.schedule)


def by_kind(found: tuple[Advice, ...]) -> dict[str, Advice]:
    return {each.kind: each for each in found}


def needed(plan: Plan, cluster: ClusterSpec, schedule: Schedule) -> float:
    return max(
        each.allocated_bytes + each.context_bytes for each in estimate_memory(plan, cluster, schedule).devices
    )


@pytest.mark.parametrize("most", [0, 1, 2, 7, 8, 9, 100])
def test_the_largest_count_is_that_of_trying_all(most: int) -> None:
    for limit in range(most + 3):
        brute = max((count for count in range(1, most + 1) if count <= limit), default=0)
        assert largest_of(limit.__ge__, most) == brute


def test_need_and_room_are_what_the_device_has() -> None:
    plan, cluster, schedule = given()
    found = memory_advice(plan, cluster, schedule, cluster.memory_bytes)
    assert found.numbers["needed_bytes"] + found.numbers["free_bytes"] == cluster.memory_bytes
    assert found.numbers["needed_bytes"] == needed(plan, cluster, schedule)
    assert not found.is_waste and found.sentence.startswith("fits")


@pytest.mark.parametrize("choices", [{}, {"pp": 2, "tp": 1}, {"recompute": "full", "cp": 2}])
def test_the_largest_microbatch_and_sequence_fit_and_the_next_do_not(choices: dict[str, Any]) -> None:
    plan, cluster, schedule = given(**choices)
    found = by_kind(advice_of(plan, cluster, schedule))
    size = int(found["microbatch"].numbers["largest"])
    whole = plan.workload.global_batch // plan.dp
    larger = [each for each in range(size + 1, whole + 1) if whole % each == 0]
    assert needed(plan.changed(microbatch_size=size), cluster, schedule) <= cluster.memory_bytes
    assert all(
        needed(plan.changed(microbatch_size=each), cluster, schedule) > cluster.memory_bytes
        for each in larger
    )
    longest = int(found["sequence"].numbers["longest"])
    assert longest >= plan.workload.sequence_length and longest % (2 * plan.cp * plan.tp) == 0
    for length, fits in ((longest, True), (longest + SEQUENCE_STEP, False)):
        changed = plan.changed(workload=Workload(64, length))
        assert (needed(changed, cluster, schedule) <= cluster.memory_bytes) == fits


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    plan, cluster, schedule = given(sequence=32768, tp=1)
    found = by_kind(advice_of(plan, cluster, schedule))
    assert found["memory"].is_waste and "too much" in found["memory"].sentence
    assert found["memory"].numbers["free_bytes"] < 0
    assert found["microbatch"].numbers["largest"] == 0 and "no microbatch" in found["microbatch"].sentence
    assert 0 < found["sequence"].numbers["longest"] < 32768


def test_less_memory_leaves_less_room() -> None:
    plan, cluster, schedule = given()
    all_of_it = by_kind(advice_of(plan, cluster, schedule))
    half = by_kind(advice_of(plan, cluster, schedule, cluster.memory_bytes // 2))
    for kind, name in (("memory", "free_bytes"), ("sequence", "longest"), ("microbatch", "largest")):
        assert half[kind].numbers[name] <= all_of_it[kind].numbers[name]
    assert half["sequence"].numbers["longest"] < all_of_it["sequence"].numbers["longest"]


def test_a_length_between_two_multiples_that_fits_is_not_called_too_long() -> None:
    plan, cluster, schedule = given(sequence=8192 + SEQUENCE_STEP // 2)
    tight = int(needed(plan, cluster, schedule)) + 1
    (found,) = [each for each in advice_of(plan, cluster, schedule, tight) if each.kind == "sequence"]
    assert found.numbers["longest"] == 8192 + SEQUENCE_STEP // 2


def test_a_length_beyond_what_the_model_was_made_for_is_said() -> None:
    plan, cluster, schedule = given("8xH200", tp=8, recompute="full")
    (found,) = [each for each in advice_of(plan, cluster, schedule) if each.kind == "sequence"]
    assert (
        found.numbers["longest"] > plan.model.max_sequence_length and "was made for 131072" in found.sentence
    )


def test_a_schedule_that_nobody_knows_is_refused() -> None:
    plan, cluster, _ = given()
    with pytest.raises(PlanError, match="no_such"):
        advice_of(plan.changed(schedule="no_such"), cluster)
