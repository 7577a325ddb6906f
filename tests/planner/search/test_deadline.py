"""Deadline: the number of devices is in time, fewer are not, and an impossible deadline says what is possible."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from meshwright.planner.advice.goodput import Failures, duration
from meshwright.planner.search.deadline import (
    DeadlineError,
    fewest_devices,
    node_size,
    resized,
    smallest_fitting,
)
from meshwright.planner.search.search import search
from meshwright.planner.search.solve import Solution
from meshwright.specs import Cluster, ModelSpec, Workload, load_model
from meshwright.specs.cluster.device import Link
from meshwright.specs.error import OutOfMemoryError, PlanError

MODEL = ModelSpec.decoder(8, 2048, 16, max_sequence_length=4096, vocabulary_size=32000)
WORK = Workload(64, 4096)
FIX: dict[str, Any] = {
    "dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32", "microbatch_size": 1,
    "recompute": "none", "tp": 1, "cp": 1,
}  # fmt: skip
DAY = 86400.0
TOKENS = 10**11


def solved(days: float, cluster: str = "8xH100", tokens: int = TOKENS, **options: Any) -> Solution:
    options = {"fix": FIX, "num_simulated": 2, **options}
    return fewest_devices(MODEL, Cluster(cluster), WORK, num_tokens=tokens, deadline_s=days * DAY, **options)


@cache
def takes_s(nodes: int) -> float:
    """Of the best plan on so many nodes."""
    found = search(MODEL, Cluster(f"{nodes}x8xH100"), WORK, fix=FIX, num_simulated=2)
    return duration(TOKENS, found[0].step.value, WORK.tokens_per_step, 8 * nodes).expected_s


def test_the_number_found_is_in_time_and_every_smaller_one_is_late() -> None:
    one = takes_s(1)
    solution = solved(one / 3 / DAY)
    nodes = solution.value // 8
    assert solution.value % 8 == 0 and solution.found[0].plan.num_devices == solution.value
    assert takes_s(nodes) <= one / 3
    assert nodes > 1 and all(takes_s(fewer) > one / 3 for fewer in range(1, nodes))
    does = {each.value: each.does for each in solution.attempts}
    assert does[solution.value] and len(does) >= 2


def test_a_deadline_that_one_node_meets_takes_one_node() -> None:
    assert solved(10 * takes_s(1) / DAY).value == 8


def test_failures_take_more_devices_or_more_time() -> None:
    days = takes_s(2) * 1.02 / DAY
    failing = Failures(20 * 3600.0 * 16, 300.0, 1800.0)  # two nodes: every 20 hours
    assert solved(days).value == 16
    assert solved(days, failures=failing).value > 16


def test_an_impossible_deadline_says_what_is_possible() -> None:
    with pytest.raises(DeadlineError) as caught:
        solved(takes_s(1) / DAY / 1000, max_devices=32)
    assert caught.value.exit_code == 3
    assert "on 32" in caught.value.given and "--deadline from" in caught.value.allowed
    assert "--max-gpus" in caught.value.next
    with pytest.raises(DeadlineError, match="do not help with this batch"):
        solved(takes_s(1) / DAY / 30, max_devices=4096)  # the batch has 64 sequences


def test_what_never_fits_is_said() -> None:
    with pytest.raises(OutOfMemoryError, match="nothing fits on up to 8 devices"):
        fewest_devices(
            load_model("llama-3.1-405b"), Cluster("8xH100"), WORK, num_tokens=10**9, deadline_s=1000 * DAY,
            max_devices=8, fix=FIX,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [({"tokens": 0}, "--tokens"), ({"max_devices": 4}, "at least a node, 8"), ({"days": 0.0}, "above 0")],
)
def test_mistakes_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        solved(**{"days": 1.0, **options})


def test_a_mistake_that_no_number_of_devices_mends_is_one_message() -> None:
    with pytest.raises(PlanError, match="wings"):
        solved(1.0, fix={**FIX, "wings": 2})


def test_a_cluster_grows_by_nodes_and_keeps_what_was_said() -> None:
    own = Cluster("4x8xH100", nic="100Gb/s")
    grown = resized(own, 16)
    assert grown.num_devices == 128 and grown.levels[-1].bandwidth_bytes_per_s == 12.5e9
    assert grown.levels[-1].num_devices == 128 and grown.name != "16x8xH100"
    assert resized(Cluster("4x8xH100"), 16).levels == Cluster("16x8xH100").levels
    assert resized(Cluster("4x8xH100"), 16).name == Cluster("16x8xH100").name
    assert resized(Cluster("H100"), 3).num_devices == 24 and node_size(Cluster("H100")) == 8
    assert len(resized(Cluster("4x8xH100"), 1).levels) == 1
    cheap = replace(own, devices=tuple(replace(each, price_per_hour_usd=2.0) for each in own.devices))
    assert resized(cheap, 2).devices[0].price_per_hour_usd == 2.0


def test_a_cluster_with_links_of_its_own_does_not_grow() -> None:
    wired = replace(Cluster("2x8xH100"), links=(Link("device 0", "device 1", 1e9, 1e-6),))
    with pytest.raises(PlanError, match="equal nodes"):
        resized(wired, 4)


def test_the_smallest_cluster_has_a_plan_that_fits_and_fewer_nodes_have_none() -> None:
    model = load_model("llama-3.1-70b")
    few: dict[str, Any] = {**FIX, "tp": 8, "recompute": "full", "sharding": "none", "schedule": "1f1b"}
    solution = smallest_fitting(model, Cluster("8xH100"), Workload(64, 4096), fix=few, num_simulated=1)
    nodes = solution.value // 8
    assert nodes > 1 and solution.found[0].plan.num_devices == solution.value
    does = {each.value: each.does for each in solution.attempts}
    assert does[solution.value] and not any(does[value] for value in does if value < solution.value)
    with pytest.raises(OutOfMemoryError):
        search(model, Cluster(f"{nodes - 1}x8xH100"), Workload(64, 4096), fix=few, num_simulated=1)
    with pytest.raises(OutOfMemoryError, match="up to 8 devices"):
        smallest_fitting(model, Cluster("8xH100"), Workload(64, 4096), fix=few, max_devices=8)
