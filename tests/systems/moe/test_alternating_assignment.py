"""Alternating assignment beside the true optimum, round robin and the program, on drawn chains; and loads in its
objective."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.specs.error import SpecError
from meshwright.specs.routing.expert_placement import GroupShape, RoundRobinExperts
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.systems.moe.alternating_assignment import (
    RESTARTS,
    PlacementObjective,
    alternating,
    improved,
    optimum,
)
from meshwright.systems.moe.assignment_program import balanced_clusters, solved


def enumerated(found: PlacementObjective) -> float:
    """The best value of all placements, one by one."""
    num_layers, num_experts = found.loads.shape
    even = np.arange(num_experts) * found.num_devices // num_experts
    layer = sorted(set(itertools.permutations(even.tolist())))
    return max(found.value(np.array(rows)) for rows in itertools.product(layer, repeat=num_layers))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("num_layers", "num_experts", "weight"), [(2, 4, 0.0), (3, 4, 0.5), (2, 6, 0.0), (2, 6, 0.2)]
)
def test_the_optimum_is_the_best_of_all_and_sweeps_are_within_a_hundredth(
    num_layers: int, num_experts: int, weight: float, seed: int
) -> None:
    found = PlacementObjective.of(markov_trace(500, num_layers, num_experts, 0.3, seed), 2, weight)
    best = enumerated(found)
    assert found.value(optimum(found)) == pytest.approx(best, abs=1e-12)
    ours = found.value(alternating(found, RESTARTS, seed=0))
    assert ours <= best + 1e-12 and ours >= best - 0.01 * abs(best)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("num_experts", [4, 6])
def test_three_layers_too(num_experts: int, seed: int) -> None:
    found = PlacementObjective.of(markov_trace(500, 3, num_experts, 0.3, seed), 2)
    best = found.value(optimum(found))
    if num_experts == 4:
        assert best == pytest.approx(enumerated(found), abs=1e-12)
    assert found.value(alternating(found, RESTARTS, seed=0)) >= best - 0.01 * best


# layers, experts, devices, concentration: the notes' synthetic traces (7.3), fitted to 3,000 tokens, tried on 3,000 others
NOTED = [(6, 8, 4, 0.3), (32, 8, 4, 1.0), (32, 8, 4, 0.3), (12, 64, 8, 0.1)]


@pytest.mark.parametrize(("layers", "experts", "devices", "concentration"), NOTED)
def test_a_fifth_fewer_moves_than_round_robin_on_tokens_that_were_not_seen(
    layers: int, experts: int, devices: int, concentration: float
) -> None:
    fitted, others = markov_trace(6_000, layers, experts, concentration, seed=1).parted(3_000)
    tried = PlacementObjective.of(others, devices)
    ours = 1 - tried.kept(alternating(PlacementObjective.of(fitted, devices), RESTARTS, seed=0))
    robin = RoundRobinExperts()(others, GroupShape(devices)).moved_share(others)
    assert robin == pytest.approx(1 - 1 / devices, abs=0.04)  # what chance keeps
    assert ours <= 0.8 * robin


def test_eight_experts_on_four_devices_are_within_a_hundredth_of_the_optimum() -> None:
    found = PlacementObjective.of(markov_trace(3_000, 4, 8, 0.3, seed=1), 4)
    best = found.value(optimum(found))
    assert found.value(alternating(found, RESTARTS, seed=0)) >= best - 0.01 * best


def test_load_in_the_objective_evens_devices_out_for_some_moves() -> None:
    trace = markov_trace(3_000, 6, 8, 0.3, seed=1)
    kept, uneven = [], []
    for weight in (0.0, 0.3, 3.0):
        found = PlacementObjective.of(trace, 4, weight)
        best, devices = optimum(found), alternating(found, RESTARTS, seed=0)
        assert found.value(devices) >= found.value(best) - 0.02
        kept.append(found.kept(best))
        uneven.append(found.unevenness(best))
    assert uneven[0] > uneven[1] > uneven[2] and kept[0] > kept[1] > kept[2]


def test_a_sweep_never_loses() -> None:
    random = np.random.default_rng(0)
    for weight in (0.0, 0.5):
        found = PlacementObjective.of(markov_trace(300, 4, 8, 0.3, seed=2), 4, weight)
        start = np.stack([random.permutation(np.arange(8) // 2) for _ in range(4)])
        assert found.value(improved(found, start)) >= found.value(start)


def test_the_program_finds_the_optimum_of_a_tiny_case() -> None:
    trace = markov_trace(500, 3, 4, 0.3, seed=1)
    found = PlacementObjective.of(trace, 2)
    best = solved(found.moves, 2, time_limit_s=60)
    assert best.gap == pytest.approx(0, abs=1e-4)
    assert found.kept(best.devices) == pytest.approx(found.kept(optimum(found)), abs=1e-12)
    assert best.moved == pytest.approx((1 - found.kept(best.devices)) * found.moves.sum())


def test_clusters_are_as_even_as_they_can_be() -> None:
    loads = np.array([9.0, 1, 8, 2, 7, 3, 6, 4])
    clusters = balanced_clusters(loads, 4, time_limit_s=10)
    assert np.bincount(clusters, loads).tolist() == [10.0] * 4 and np.bincount(clusters).tolist() == [2] * 4


def test_what_is_too_large_to_enumerate_is_refused() -> None:
    with pytest.raises(SpecError, match="all placements"):
        optimum(PlacementObjective.of(markov_trace(50, 2, 16, 1.0, seed=0), 4))
