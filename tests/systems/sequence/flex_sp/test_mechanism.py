"""FlexSp: the issue's set-up on the shipped lengths and on drawn ones, and costs of a user's own model."""

from __future__ import annotations

import gzip
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.catalog import filler
from meshwright.prediction.sequence.fitted_costs import sequence_costs_of
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.group_seconds import busy_seconds, finish_seconds
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.sequence.static_groups import StaticGroups
from meshwright.systems.sequence.flex_sp.card import padded_error
from meshwright.systems.sequence.flex_sp.mechanism import FlexSp
from meshwright.systems.sequence.flex_sp.published_job import published_costs, wikipedia_batch

LONGEST, NUM_RANKS, BATCH, NUM_BATCHES = 384 * 1024, 64, 512, 20
FILES = ("distca_dist_prolong.json.gz", "distca_dist_wlbllm.json.gz")


def shipped(folder: Path, name: str, count: int) -> Iterator[tuple[int, ...]]:
    pool = json.loads(gzip.decompress((folder / "workloads" / "training_lengths" / name).read_bytes()))
    drawn = random.Random(name)
    for _ in range(count):
        yield tuple(min(length, LONGEST) for length in drawn.sample(pool, BATCH))


def heavy_tailed(count: int) -> Iterator[tuple[int, ...]]:
    """A lognormal body of median 350 and sigma 1.35, and 3 % of a Pareto tail from 4,096 tokens whose index is 1.1."""
    drawn = random.Random(0)
    for _ in range(count):
        lengths = (
            drawn.lognormvariate(5.86, 1.35) if drawn.random() > 0.03 else 4096 * drawn.paretovariate(1.1)
            for _ in range(BATCH)
        )
        yield tuple(min(LONGEST, max(1, round(length))) for length in lengths)


def check_memory(batch: GroupedBatch, costs: SequenceCosts) -> None:
    for group in batch.groups:
        assert costs.held_bytes(batch.group_lengths(group), group.degree) <= costs.capacity_bytes * (1 + 1e-9)
        assert group.degree & (group.degree - 1) == 0 and group.ranks[0] % group.degree == 0
        assert group.ranks == tuple(range(group.ranks[0], group.ranks[0] + group.degree))


def end_s(batch: GroupedBatch, costs: SequenceCosts) -> float:
    return max(finish_seconds(batch, costs))


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("name", FILES)
def test_on_the_shipped_lengths_it_is_near_the_bound_and_far_from_static_groups(
    name: str, least: int, shared_data: Path
) -> None:
    """Groups have two GPUs at least, as in the authors' code, or may have one."""
    costs, gains = published_costs("7B", 384), []
    costs = costs if least == 2 else replace(costs, degrees=())
    for lengths in shipped(shared_data, name, NUM_BATCHES):
        batch = FlexSp()(lengths, NUM_RANKS, costs)
        check_memory(batch, costs)
        assert end_s(batch, costs) <= 1.12 * lower_bound_s(lengths, NUM_RANKS, costs)
        gains.append(end_s(StaticGroups()(lengths, NUM_RANKS, costs), costs) / end_s(batch, costs))
        assert end_s(StaticGroups(adapts=True)(lengths, NUM_RANKS, costs), costs) >= end_s(batch, costs)
    assert (
        statistics.median(gains) >= 1.5
    )  # a step of one sequence of 300K may be at 1.4: the bound is there, too


@pytest.mark.parametrize("name", FILES)
def test_in_lockstep_buckets_charge_few_tokens_more(name: str, shared_data: Path) -> None:
    costs = published_costs("7B", 384)
    for lengths in shipped(shared_data, name, 3):
        parts = FlexSp(lockstep=True).micro_batches(lengths, NUM_RANKS, costs)
        assert padded_error(lengths, parts) <= 0.023
        batch = FlexSp(lockstep=True)(lengths, NUM_RANKS, costs)
        check_memory(batch, costs)
        assert end_s(batch, costs) <= sum(packed.seconds for packed in parts) * (1 + 1e-9)
        assert sum(packed.seconds for packed in parts) <= end_s(
            StaticGroups()(lengths, NUM_RANKS, costs), costs
        )


def test_heavy_tails_are_near_the_bound_too() -> None:
    """Where a batch fills the ranks once and a bit, or one sequence takes half of the step, whole groups do not share out
    evenly: the bound is further away there."""
    costs = published_costs("7B", 384)
    ratios = sorted(
        end_s(FlexSp()(lengths, NUM_RANKS, costs), costs) / lower_bound_s(lengths, NUM_RANKS, costs)
        for lengths in (*heavy_tailed(20), *(wikipedia_batch(seed) for seed in range(20)))
    )
    assert ratios[20] <= 1.05 and ratios[-1] <= 1.3


def test_groups_fall_in_degree_so_that_no_rank_waits() -> None:
    costs = published_costs("7B", 384)
    batch = FlexSp()(wikipedia_batch(3), NUM_RANKS, costs)
    assert len({group.degree for group in batch.groups}) > 1
    assert [group.degree for group in batch.groups] == sorted(
        (group.degree for group in batch.groups), reverse=True
    )
    assert finish_seconds(batch, costs) == pytest.approx(busy_seconds(batch, costs), rel=1e-9)


def test_it_is_the_same_every_time() -> None:
    costs = published_costs("7B", 384)
    for algorithm in (FlexSp(), FlexSp(lockstep=True)):
        assert algorithm(wikipedia_batch(1), NUM_RANKS, costs) == algorithm(
            wikipedia_batch(1), NUM_RANKS, costs
        )


@pytest.mark.parametrize("num_ranks", [1, 3, 6, 12])
def test_ranks_need_no_power_of_two(num_ranks: int) -> None:
    costs = SequenceCosts(1e-6, 1e-3, 0.05, 1, 0, 100, ring_bytes=1, rates={2: 1e4, 8: 1e4}, is_beside=True)
    most = 100 * 2 ** (num_ranks.bit_length() - 1)
    drawn = random.Random(num_ranks)
    lengths = tuple(min(most, round(10 * drawn.paretovariate(0.9))) for _ in range(40))
    for algorithm in (FlexSp(), FlexSp(lockstep=True)):
        batch = algorithm(lengths, num_ranks, costs)
        check_memory(batch, costs)
        assert len(batch.of_rank) == num_ranks


def test_a_users_own_model_and_cluster() -> None:
    cluster = Cluster("2x8xA100")
    plan = Plan.of(
        load_model("llama-3.1-8b"), cluster, Workload(16, 131_072), context="ring", dp=16, sharding="zero3", dtype="bfloat16",
        overlap=("reduce", "gather"),
    )  # fmt: skip
    costs = sequence_costs_of(plan, cluster)
    lengths = tuple(min(131_072, length) for length in wikipedia_batch(0, 128, 256))
    batch = filler("sequence_groups", "flex_sp")(lengths, 16, costs)
    check_memory(batch, costs)
    assert end_s(StaticGroups(degree=16)(lengths, 16, costs), costs) > 1.1 * end_s(batch, costs)
    assert end_s(batch, costs) >= lower_bound_s(lengths, 16, costs)


def test_a_sequence_that_fits_on_no_group_is_refused() -> None:
    costs = published_costs("7B", 384)
    with pytest.raises(PlanError, match="groups have at most 64"):
        FlexSp()((500_000, 3), NUM_RANKS, costs)
    with pytest.raises(PlanError, match="of 48"):
        FlexSp()((300_000, 3), 48, costs)  # a power of two of 48 ranks is 32
