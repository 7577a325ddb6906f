"""ExFlow's placement: two stages, the exact one and the program beside alternating assignment, and what cannot be."""

from __future__ import annotations

import pytest

from meshwright.specs.error import SpecError
from meshwright.specs.routing.expert_placement import ContiguousExperts, GroupShape
from meshwright.specs.routing.markov_routing import markov_trace
from meshwright.systems.moe.ex_flow.mechanism import ExFlow
from meshwright.systems.moe.published_routing import recorded

TRACE = markov_trace(3_000, 4, 8, 0.3, seed=1)


def test_every_way_keeps_more_moves_than_neighbours_do_and_none_more_than_the_exact_one() -> None:
    shape = GroupShape(4)
    before = ContiguousExperts()(TRACE, shape).moved_share(TRACE)
    best = ExFlow(exact=True)(TRACE, shape).moved_share(TRACE)
    ours = ExFlow()(TRACE, shape).moved_share(TRACE)
    assert best <= ours <= best + 0.01
    assert ours < before
    small = markov_trace(500, 3, 4, 0.3, seed=1)  # the program proves its optimum in a moment
    exact, program = (each(small, GroupShape(2)) for each in (ExFlow(exact=True), ExFlow(program_s=60)))
    assert program.moved_share(small) == pytest.approx(exact.moved_share(small), abs=1e-9)


def test_nodes_come_first() -> None:
    shape = GroupShape(4, 2)
    staged = ExFlow(exact=True)(TRACE, shape)
    flat = ExFlow(exact=True)(TRACE, GroupShape(4))
    assert staged.moved_share(TRACE, 2) < flat.moved_share(TRACE, 2)
    assert staged.moved_share(TRACE) >= flat.moved_share(TRACE)
    only_nodes = ExFlow(exact=True)(TRACE, GroupShape(2)).moved_share(TRACE)
    assert staged.moved_share(TRACE, 2) == pytest.approx(only_nodes, abs=1e-12)


def test_load_counts_where_it_is_asked_for() -> None:
    fitted, others = recorded()
    shape = GroupShape(4)
    plain, even = ExFlow()(fitted, shape), ExFlow(load_weight=0.3)(fitted, shape)
    assert (
        plain.moved_share(others)
        < even.moved_share(others)
        < ContiguousExperts()(fitted, shape).moved_share(others)
    )
    assert even.imbalances(others).mean() < plain.imbalances(others).mean()


def test_devices_divide_experts() -> None:
    with pytest.raises(SpecError, match="8 experts on 3 devices"):
        ExFlow()(TRACE, GroupShape(3))
    with pytest.raises(SpecError, match="on 2 nodes"):
        GroupShape(3, 2)
