"""The search for paths: what a path may do, and that what is found keeps the rules and beats where it began."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from meshwright.specs.error import PlanError
from meshwright.systems.pipeline.skip_pipe.card import network, path_rules
from meshwright.systems.pipeline.skip_pipe.mechanism import dispatch
from meshwright.systems.pipeline.skip_pipe.path_search import PathRules, first_paths, search_paths

LINE = PathRules(tuple((stage,) for stage in range(6)), 6, 1)  # node n runs stage n


@pytest.mark.parametrize("path", [(0, 1, 2, 3), (0, 2, 1, 4), (0, 4, 3, 5), (0, 2, 1, 4, 3)])
def test_paths_may_skip_and_step_back_once(path: tuple[int, ...]) -> None:
    assert LINE.allows(path)


@pytest.mark.parametrize(
    "path",
    [(0, 5, 4, 3), (0, 3, 1, 2), (0, 1, 1, 2), (0, 2, 1, 4, 3, 5, 4)],
    ids=["too far ahead", "too far behind", "a stage twice", "a stage twice, later"],
)
def test_paths_may_not(path: tuple[int, ...]) -> None:
    assert not LINE.allows(path)


def test_visits_and_places_must_come_out_even() -> None:
    with pytest.raises(PlanError, match="6 visits .* 9 places"):
        PathRules(((0,), (1,), (2,), (3,)), 3, 3)


def test_check_names_the_node_that_is_left_out() -> None:
    with pytest.raises(PlanError, match=r"nodes \[5\] are not visited 1 times"):
        LINE.check([(0, 1, 2, 3, 4)])


@pytest.mark.parametrize("seed", range(5))
def test_the_first_paths_keep_the_rules(seed: int) -> None:
    for rules in (path_rules(), replace(path_rules(), memory=1)):
        rules.check(first_paths(rules, random.Random(seed)))


def test_a_short_search_keeps_the_rules_and_says_what_its_plan_takes() -> None:
    rules = path_rules()
    found = search_paths(network(), rules, num_proposals=300, spacings_s=(1.0,))
    rules.check(found.plan.paths)
    assert found.span_s == dispatch(network(), found.plan.injections()).span_s
    assert found.span_s < 48.9  # the published random paths
    assert found == search_paths(network(), rules, num_proposals=300, spacings_s=(1.0,))
