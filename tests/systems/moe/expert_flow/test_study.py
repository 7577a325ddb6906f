"""The engine with few experts: tokens, counts and bytes; a cache that is too small for a step; batches by path."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.systems.moe.expert_flow import study
from meshwright.systems.moe.expert_flow.mechanism import CachedExperts, mean_active, run


@pytest.mark.parametrize("order", ["learned", "recent", "frequent"])
def test_tokens_counts_and_bytes(order: str) -> None:
    """One run of each order; what is recorded is what a step of so many tokens sends to experts."""
    place = CachedExperts(12, order, 2)
    stays, comes = study.served(None), study.served(place.expert_cache())
    assert (comes.tokens == stays.tokens).all() and comes.tokens.shape == (1 + study.DECODES, study.PROMPTS)
    traced = run(place.expert_cache(), comes.requests)
    counts = comes.counts
    assert (counts.hits, counts.misses, counts.came_ahead) == (traced.hits, traced.misses, traced.came_ahead)
    assert counts.misses > 0 and (counts.came_ahead > 0) == (order == "learned")
    assert counts.peak_bytes == 12 * study.EXPERT_BYTES
    assert [experts.shape for _, experts in comes.requests[:5]] == [(27, 2)] * 4 + [(3, 2)]


def test_a_step_may_need_more_experts_than_there_are_places() -> None:
    comes = study.served(CachedExperts(2, "recent", 0).expert_cache())
    assert (comes.tokens == study.served(None).tokens).all()
    assert comes.counts.peak_bytes == 2 * study.EXPERT_BYTES


def test_outputs_of_batches_by_path_are_put_back() -> None:
    assert study.restored_difference() < 1e-10
    tokens = study.drawn_tokens(8, 1)[:, 0]
    paths = study.routed(tokens)
    assert paths.shape == (8, study.LAYERS, 2) and (paths == study.routed(tokens, 3)).all()
    same = np.repeat(tokens[:1], 8)
    assert mean_active(study.routed(same), 4) == 2 * study.LAYERS, "equal tokens have equal paths"


def test_batches_by_predicted_path_answer_the_same_with_fewer_experts() -> None:
    arrival, path = study.regrouped(0)
    assert (arrival.tokens == path.tokens).all() and np.abs(arrival.logits - path.logits).max() < 1e-10
    assert path.active[0] < arrival.active[0] <= study.LAYERS * study.EXPERTS


@pytest.mark.slow
def test_prompts_have_a_tenth_fewer_experts_over_seeds() -> None:
    """In every one of four seeds fewer, a tenth in the mean; steps behind prompts are left out: an untrained model decodes
    what has nothing to do with a topic."""
    pairs = [study.regrouped(seed) for seed in range(4)]
    saved = [1 - path.active[0] / arrival.active[0] for arrival, path in pairs]
    assert min(saved) > 0 and np.mean(saved) >= 0.1
