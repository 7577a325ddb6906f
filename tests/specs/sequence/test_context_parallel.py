"""How devices of cp attend: a kind, a layout and a degree that make sense together, and what they divide."""

from __future__ import annotations

import pytest

from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import PlanError
from meshwright.specs.sequence.context_parallel import (
    ARRANGEMENT_OF,
    CONTEXTS,
    TOKEN_LAYOUTS,
    ContextParallel,
    repeats_of_key,
)
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS


def test_every_kind_has_a_layout_of_its_own_and_takes_all_others():
    for kind in CONTEXTS:
        assert ContextParallel(4, kind).arrangement == ARRANGEMENT_OF[kind]
        assert {ContextParallel(4, kind, layout).arrangement for layout in TOKEN_LAYOUTS} == set(ARRANGEMENTS)


def test_degrees_of_a_ring_and_of_what_divides_heads():
    of = {kind: ContextParallel(8, kind) for kind in CONTEXTS}
    assert [(of[kind].ring_degree, of[kind].heads_degree) for kind in CONTEXTS[:3]] == [
        (8, 1),
        (8, 1),
        (1, 8),
    ]
    assert [of[kind].travels for kind in CONTEXTS[:3]] == [True, False, False]
    both = ContextParallel(8, "ring", "", 4)
    assert (both.ring_degree, both.heads_degree, both.num_runs, both.travels) == (2, 4, 8, True)
    assert ContextParallel(6, "ring", "", 3).num_runs == 12


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ((4, "spiral"), "context is 'spiral'"),
        ((4, "ring", "striped"), "contiguous or zigzag or stripe"),
        ((4, "ring", "", 3), "below cp that divides it"),
        ((4, "ring", "", 4), "take context ulysses"),
        ((4, "ulysses", "", 2), "leave ulysses out"),
    ],
)
def test_what_cannot_be_is_refused(given, word):
    with pytest.raises(PlanError) as caught:
        ContextParallel(*given)
    assert word in str(caught.value)


def test_keys_are_repeated_where_there_are_fewer_than_ranks():
    assert [repeats_of_key(32, 8, degree) for degree in (1, 2, 8, 16, 32)] == [1, 1, 1, 2, 4]
    for heads in ((32, 8, 3), (32, 8, 64), (12, 3, 4), (12, 8, 12)):
        with pytest.raises(PlanError, match="ulysses"):
            repeats_of_key(*heads)


def test_ulysses_divides_the_heads_that_tensor_parallelism_leaves():
    model, ulysses = ModelSpec.decoder(2, 64, 8), ContextParallel(4, "ulysses")
    assert ulysses.divides(model, 2, 64) and not ulysses.divides(model, 4, 64)
    inside = ContextParallel(8, "ring", "", 2)
    assert inside.divides(model, 4, 64) and not inside.divides(model, 8, 64)


@pytest.mark.parametrize(
    ("choices", "multiple"),
    [
        ({"context": "ring"}, 8),
        ({"context": "all_gather"}, 8),
        ({"token_layout": "contiguous"}, 4),
        ({"token_layout": "stripe", "context": "all_gather"}, 4),
        ({"context": "ulysses", "token_layout": "zigzag"}, 8),
        ({"ulysses": 2}, 4),
    ],
)
def test_a_plan_is_refused_whose_sequences_are_no_whole_runs(choices, multiple):
    """When it is made, not when it runs."""

    def made(length):
        return Plan.of(ModelSpec.decoder(2, 64, 4), Cluster.detect(4), Workload(1, length), cp=4, **choices)

    assert made(5 * multiple).cp == 4
    with pytest.raises(PlanError, match=f"multiple of {multiple}"):
        made(5 * multiple + multiple // 2)
