"""Routing traces: counts of experts and of pairs, parts of one, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.specs.error import SpecError
from meshwright.specs.routing.affinity import affinities
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun

# Three tokens, two layers, two experts a token.
SMALL = RoutingTrace(
    np.array([[[0, 1], [2, 0]], [[0, 2], [2, 1]], [[1, 2], [0, 1]]]),
    num_experts=3, layers=(1, 4), runs=(TraceRun(5, 0, 2), TraceRun(6, 1, 1)),
)  # fmt: skip


def test_counts_are_of_rows_and_pairs() -> None:
    assert SMALL.counts.tolist() == [[2, 2, 2], [2, 2, 2]]
    (pairs,) = SMALL.transitions
    # token 0: 0 and 1 each to 2 and 0; token 1: 0 and 2 to 2 and 1; token 2: 1 and 2 to 0 and 1
    assert pairs.tolist() == [[1, 1, 2], [2, 1, 1], [1, 2, 1]]
    assert pairs.sum() == 3 * 2 * 2


def test_transitions_equal_counting_token_by_token() -> None:
    random = np.random.default_rng(3)
    trace = RoutingTrace(random.integers(7, size=(40, 3, 2)), 7, (0, 1, 2))
    expected = np.zeros((2, 7, 7), int)
    for token in trace.experts.tolist():
        for layer in range(2):
            for a in token[layer]:
                for b in token[layer + 1]:
                    expected[layer, a, b] += 1
    assert (trace.transitions == expected).all()


def test_parts_keep_whose_tokens_they_are() -> None:
    first, rest = SMALL.parted(1)
    assert first.runs == (TraceRun(5, 0, 1),) and rest.runs == (TraceRun(5, 0, 1), TraceRun(6, 1, 1))
    assert (np.concatenate([first.experts, rest.experts]) == SMALL.experts).all()
    assert SMALL.of_steps(6, 9).experts.tolist() == SMALL.experts[2:].tolist()
    for impossible in (0, 3):
        with pytest.raises(SpecError, match="trace of 3"):
            SMALL.parted(impossible)
    with pytest.raises(SpecError, match="some of 5 to 6"):
        SMALL.of_steps(7, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"experts": np.zeros((2, 2), int)}, "shape"),
        ({"experts": np.zeros((2, 1, 1))}, "float64"),
        ({"experts": np.full((2, 1, 1), 3)}, "expert 3"),
        ({"experts": np.full((2, 1, 1), -1)}, "expert -1"),
        ({"num_experts": 0}, "0 experts"),
        ({"layers": (0, 1)}, "layers"),
        ({"layers": (-1,)}, "layers"),
        ({"runs": (TraceRun(0, 0, 3),)}, "3 tokens in a trace of 2"),
        ({"origin": "dreamt"}, "dreamt"),
    ],
)
def test_what_contradicts_itself_is_refused(changed: dict, message: str) -> None:
    given = {"experts": np.zeros((2, 1, 1), int), "num_experts": 3, "layers": (0,)} | changed
    with pytest.raises(SpecError, match=message):
        RoutingTrace(**given)


def test_a_chain_that_repeats_its_expert_has_all_bits_and_independent_layers_none() -> None:
    random = np.random.default_rng(0)
    first = random.integers(8, size=20_000)
    same = RoutingTrace(np.stack([first, (first + 3) % 8], 1)[:, :, None], 8, (0, 1))
    (found,) = affinities(same)
    assert found.bits == pytest.approx(3, abs=0.01) and found.followed == 1
    other = RoutingTrace(random.integers(8, size=(20_000, 2, 1)), 8, (0, 1))
    (found,) = affinities(other)
    assert found.bits < 0.001 and found.followed == pytest.approx(1 / 8, abs=0.02)


def test_a_drawn_chain_repeats_by_its_seed_and_has_its_transitions() -> None:
    made, again = (markov_trace(30_000, 3, 4, 0.5, seed=7) for _ in range(2))
    assert (made.experts == again.experts).all() and made.origin == "drawn"
    assert not (made.experts == markov_trace(30_000, 3, 4, 0.5, seed=8).experts).all()
    # the same rows as its seed draws, met by counted shares within four standard deviations of a share
    random = np.random.default_rng(7)
    random.integers(4, size=30_000)
    rows = random.dirichlet(np.full(4, 0.5), 4)
    counts = made.transitions[0]
    shares, each = counts / counts.sum(1, keepdims=True), counts.sum(1, keepdims=True)
    assert (np.abs(shares - rows) <= 4 * np.sqrt(rows * (1 - rows) / each) + 1e-12).all()
    with pytest.raises(SpecError, match="concentration 0"):
        markov_trace(3, 3, 4, 0.0, seed=7)
