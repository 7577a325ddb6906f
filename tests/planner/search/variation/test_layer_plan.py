"""Layer-wise plans: the dynamic programme against all splits, the fewest recomputed blocks, and what they gain."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from meshwright.planner.form.layer_costs import LayerCosts, layer_costs
from meshwright.planner.search.variation.layer_plan import (
    EVENNESS,
    Split,
    best_split,
    candidates,
    fewest_recomputed,
    is_uneven,
    layer_wise,
)
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.order import registered
from meshwright.specs import Cluster, ClusterSpec, Plan, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def drawn_costs(seed: int) -> LayerCosts:
    """A model of up to 8 uneven blocks on up to 4 devices."""
    random = np.random.default_rng(seed)
    num_layers, p = int(random.integers(4, 9)), int(random.integers(1, 5))

    def summed(low: float, high: float) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(random.uniform(low, high, num_layers))])

    saved, first = random.uniform(3, 5, num_layers), np.arange(p) == 0
    fixed = random.uniform(0, 2, p)
    return LayerCosts(
        seconds=summed(1, 3), again=summed(0.2, 1), held=summed(1, 3), saved=np.concatenate([[0.0], np.cumsum(saved)]),
        freed=np.concatenate([[0.0], np.cumsum(saved * random.uniform(0.5, 0.9, num_layers))]),
        end_s=random.uniform(0, 1, p), end_again=random.uniform(0, 0.2, p), end_saved=random.uniform(0, 2, p),
        end_freed=random.uniform(0, 0.1, p), received_again=random.uniform(0, 0.1, p),
        in_flight=np.minimum(p - np.arange(p), 3).astype(float), fixed=fixed, fixed_again=fixed + random.uniform(0, 2),
        fixed_late=np.where(first, random.uniform(0, 20), -np.inf),
    )  # fmt: skip


def stage_of(costs: LayerCosts, d: int, a: int, b: int, count: int) -> tuple[float, float]:
    """(seconds, bytes) of blocks a to b - 1 on device d, the first `count` recomputed, as the text has it."""
    saved = costs.saved[b] - costs.saved[a] + costs.end_saved[d] - (costs.freed[a + count] - costs.freed[a])
    seconds = costs.seconds[b] - costs.seconds[a] + costs.end_s[d] + costs.again[a + count] - costs.again[a]
    if count:
        seconds += costs.received_again[d]
    if count == b - a:
        saved, seconds = saved - costs.end_freed[d], seconds + costs.end_again[d]
    held, flying = costs.held[b] - costs.held[a], costs.in_flight[d]
    fixed = costs.fixed_again[d] if count else costs.fixed[d]
    return seconds, held + max(fixed + flying * saved, costs.fixed_late[d] + (flying - 1) * saved)


def all_splits(costs: LayerCosts, room: float) -> dict[Split, list[float]]:
    """Seconds of every device, of every split and all counts that fit."""
    found: dict[Split, list[float]] = {}
    num_layers, p = costs.num_layers, costs.num_devices
    for inner in itertools.combinations(range(1, num_layers), p - 1):
        edges = (0, *inner, num_layers)
        layers = tuple(b - a for a, b in itertools.pairwise(edges))
        for counts in itertools.product(*(range(n + 1) for n in layers)):
            stages = [stage_of(costs, d, edges[d], edges[d + 1], counts[d]) for d in range(p)]
            if all(size <= room for _, size in stages):
                found[Split(layers, counts)] = [seconds for seconds, _ in stages]
    return found


def score(seconds: list[float], longest: float) -> float:
    return sum(t * (1 + EVENNESS * t / longest) for t in seconds)


@pytest.mark.parametrize("seed", range(24))
def test_the_dynamic_programme_finds_what_trying_all_finds(seed: int) -> None:
    costs = drawn_costs(seed)
    total = float(costs.held[-1] + costs.saved[-1])
    num_found = 0
    for room in (0.4 * total, 0.7 * total, total, 2 * total, 4 * total):
        every = all_splits(costs, room)
        split = best_split(costs, room)
        assert (split is None) == (not every)
        if split is not None:
            longest = min(max(seconds) for seconds in every.values())
            least = min(score(t, longest) for t in every.values() if max(t) <= longest * (1 + 1e-12))
            assert max(every[split]) == pytest.approx(longest, rel=1e-12)
            assert score(every[split], longest) == pytest.approx(least, rel=1e-12)
            num_found += 1
    assert num_found


def cluster_of(name: str = "4x8xH100") -> ClusterSpec:
    return Cluster(name)


def plan_of(model: str = "llama-3.1-70b", on: str = "4x8xH100", batch: int = 64, **choices: Any) -> Plan:
    return Plan.of(load_model(model), cluster_of(on), Workload(batch, 4096), **{**MIXED, **choices})


def planned(plan: Plan, cluster: ClusterSpec) -> Predicted:
    return predict(plan, cluster)


def fits(plan: Plan, cluster: ClusterSpec, capacity: int) -> bool:
    memory = estimate_memory(plan, cluster, registered()[plan.schedule])
    return estimated_rejection(plan, memory, capacity) is None


def test_counts_of_its_own_for_every_stage_win_clearly() -> None:
    """70B on 32 GPUs of 80 GB: without recompute the first stage overflows, and with the same count on all stages those
    behind it recompute for nothing."""
    cluster = cluster_of()
    full = plan_of(pp=4, tp=4, sharding="zero1", recompute="full")
    assert not fits(full.changed(recompute="none"), cluster, cluster.memory_bytes)
    same = [full.changed(recompute_blocks=(count,) * 4) for count in range(5, 9)]
    uniform = min(
        planned(plan, cluster).step.value
        for plan in (full, *same)
        if fits(plan, cluster, cluster.memory_bytes)
    )
    found = layer_wise(planned(full, cluster), cluster, cluster.memory_bytes)
    assert found is not None and fits(found, cluster, cluster.memory_bytes)
    step = planned(found, cluster).step.value
    assert step < 0.76 * planned(full, cluster).step.value
    assert step < 0.91 * uniform


@pytest.mark.parametrize("share", [0.95, 0.85, 0.75])
def test_no_device_recomputes_a_block_too_many(share: float) -> None:
    """One block less on any device that recomputes, and the planner's own estimate says that it overflows."""
    cluster = cluster_of()
    capacity = int(share * cluster.memory_bytes)
    found = next(
        candidates(plan_of(pp=8, tp=4, sequence_parallel=True, microbatch_size=2), cluster, capacity)
    )
    assert fits(found, cluster, capacity) and any(found.num_recomputed_blocks)
    for stage, count in enumerate(found.num_recomputed_blocks):
        if not count:
            continue
        fewer = tuple(n - (s == stage) for s, n in enumerate(found.num_recomputed_blocks))
        changed = (
            found.changed(recompute_blocks=fewer)
            if any(fewer)
            else found.changed(recompute="none", recompute_blocks=())
        )
        assert not fits(changed, cluster, capacity)


@pytest.mark.parametrize(
    ("model", "on", "choices"),
    [
        ("llama-3.1-70b", "4x8xH100", {"pp": 4, "tp": 8}),
        ("llama-3.1-70b", "4x8xH100", {"pp": 4, "tp": 8, "recompute": "selective"}),
        ("llama-3.1-70b", "4x8xH100", {"pp": 2, "tp": 4, "sharding": "zero3", "recompute": "full"}),
        ("llama-3.1-8b", "8xH100", {"pp": 1, "tp": 2, "microbatch_size": 4, "recompute": "full"}),
        (
            "llama-3.1-70b",
            "4x8xH100",
            {"pp": 4, "tp": 8, "schedule": "interleaved_1f1b", "recompute": "full"},
        ),
        (
            "deepseek-v3",
            "128x8xH100",
            {"pp": 16, "dp": 64, "ep": 16, "sharding": "zero1", "batch": 1024, "recompute": "full"},
        ),
    ],
)
@pytest.mark.parametrize("share", [1.0, 0.8])
def test_never_worse_and_always_fitting(model: str, on: str, choices: dict[str, Any], share: float) -> None:
    cluster = cluster_of(on)
    plan, capacity = plan_of(model, on, **choices), int(share * cluster.memory_bytes)
    before = planned(plan, cluster)
    found = layer_wise(before, cluster, capacity)
    if found is not None:
        assert planned(found, cluster).step.value < before.step.value
        assert fits(found, cluster, capacity)
    if choices.get("recompute") == "full":
        # every one of these wastes, unless it does not fit at all
        assert found is not None or not fits(plan, cluster, capacity)


def test_blocks_of_another_kind_are_counted_as_such() -> None:
    """DeepSeek-V3's three dense blocks take less than its others, so the first stage gets more of them."""
    cluster = cluster_of("128x8xH100")
    plan = plan_of("deepseek-v3", "128x8xH100", 1024, pp=16, ep=16, sharding="zero1")
    assert is_uneven(plan.model) and not is_uneven(load_model("llama-3.1-70b"))
    costs = layer_costs(plan, cluster, ("full",))["full"]
    dense_s, other_s = np.diff(costs.seconds)[[0, -1]]
    assert dense_s < 0.9 * other_s
    found = next(candidates(plan, cluster, 4 * cluster.memory_bytes))
    seconds = fewest_recomputed(costs, 0, 4.0 * cluster.memory_bytes)[0]
    assert found.recompute == "none"
    assert sum(found.layers_per_stage) == 61 and found.layers_per_stage[0] == 4
    assert seconds[0, 4] < other_s * 4


def test_interleaved_stages_keep_their_blocks_and_recompute_less() -> None:
    cluster = cluster_of()
    plan = plan_of(pp=4, tp=8, schedule="interleaved_1f1b", recompute="full", microbatch_size=4)
    capacity = int(0.9 * cluster.memory_bytes)
    found = next(candidates(plan, cluster, capacity))
    assert found.layers_per_stage == plan.layers_per_stage and fits(found, cluster, capacity)
    assert 0 < sum(found.num_recomputed_blocks) < 80


def test_what_is_not_priced_is_left_alone() -> None:
    cluster = cluster_of()
    for choices in (
        {"schedule": "gpipe"},
        {"vocabulary": "one_barrier"},
        {"device_order": tuple(range(31, -1, -1))},
    ):
        plan = plan_of(pp=4, tp=8, **choices)
        assert list(candidates(plan, cluster, cluster.memory_bytes)) == []
    assert list(candidates(plan_of(pp=4, tp=8), cluster, 10**9)) == []  # nothing fits


def test_without_recompute_only_blocks_move() -> None:
    cluster = cluster_of()
    for schedule in ("1f1b", "interleaved_1f1b"):
        plan = plan_of(pp=4, tp=8, recompute="full", schedule=schedule)
        found = list(candidates(plan, cluster, cluster.memory_bytes, kinds=("none",)))
        assert [each.recompute for each in found] == ["none"]
        assert list(candidates(plan, cluster, cluster.memory_bytes // 2, kinds=("none",))) == []


def test_a_large_pipeline_moves_blocks_to_devices_that_hold_less() -> None:
    """126 blocks on 16 stages in three quarters of the memory: the later the device, the fewer microbatches it holds."""
    cluster = cluster_of("64x8xH100")
    plan = plan_of("llama-3.1-405b", "64x8xH100", 512, pp=16, tp=8, sharding="zero1")
    found = next(candidates(plan, cluster, int(0.75 * cluster.memory_bytes)))
    again = found.num_recomputed_blocks
    assert sum(found.layers_per_stage) == 126 and sum(again) > 0
    assert sum(found.layers_per_stage[:8]) < 63 and sum(again[:8]) > sum(again[8:])
