"""MoETuner's placement: even clusters first, then fewer moves, and both programs."""

from __future__ import annotations

import numpy as np

from meshwright.specs.routing.expert_placement import ContiguousExperts, GroupShape
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.systems.moe.alternating_assignment import PlacementObjective
from meshwright.systems.moe.moe_tuner.mechanism import MoeTuner, clustered

TRACE = markov_trace(3_000, 4, 8, 0.3, seed=1)
SHAPE = GroupShape(4)


def test_devices_are_as_even_as_clusters_and_tokens_stay_more_often() -> None:
    placed, before = MoeTuner(cluster_s=1)(TRACE, SHAPE), ContiguousExperts()(TRACE, SHAPE)
    assert placed.imbalances(TRACE).mean() < before.imbalances(TRACE).mean()
    assert placed.moved_share(TRACE) < before.moved_share(TRACE)


def test_the_second_program_finds_what_alternating_assignment_finds_in_a_small_case() -> None:
    small = markov_trace(500, 3, 4, 0.3, seed=1)
    alternating, program = (each(small, GroupShape(2)) for each in (MoeTuner(), MoeTuner(program_s=60)))
    assert program.moved_share(small) <= alternating.moved_share(small) + 1e-9


def test_moves_of_clusters_are_those_of_their_experts() -> None:
    found = PlacementObjective.of(TRACE, 4)
    clusters = np.stack([np.random.default_rng(layer).permutation(np.arange(8) // 2) for layer in range(4)])
    together = clustered(found, clusters)
    assert together.moves.sum() == found.moves.sum() and together.loads.sum() == found.loads.sum()
    by_hand = found.moves[1][clusters[1] == 2][:, clusters[2] == 3].sum()
    assert together.moves[1, 2, 3] == by_hand
