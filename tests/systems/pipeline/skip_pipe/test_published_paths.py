"""The published plans: what their source says of itself, and the rules that its partial ones keep."""

from __future__ import annotations

from collections import Counter

import pytest

from meshwright.specs.error import UnknownNameError
from meshwright.systems.pipeline.skip_pipe import published_paths
from meshwright.systems.pipeline.skip_pipe.card import path_rules
from meshwright.systems.pipeline.skip_pipe.published_paths import PLANS, STAGE_NODES, network, published


def test_seconds_of_messages_are_the_shipped_ones() -> None:
    seconds = network().message_s
    # Belgium to Canada, Belgium to Belgium, NL to London: schedule.json, "delays"
    assert seconds[0, 1] == 1.9615622573571703
    assert seconds[0, 12] == 0.3666251005828381
    assert seconds[6, 10] == 132.3144123449581
    assert (seconds == seconds.T).all() and not seconds.diagonal().any()


def test_every_node_has_one_stage() -> None:
    assert sorted(node for nodes in STAGE_NODES for node in nodes) == list(range(20))


@pytest.mark.parametrize("name", ["random", "colliding", "collision-free"])
def test_partial_plans_visit_all_nodes_equally_often(name: str) -> None:
    path_rules().check(published(name).paths)


def test_full_pipelines_pass_all_stages() -> None:
    for path in PLANS["full"].paths:
        assert [published_paths.STAGE_OF_NODE[node] for node in path] == list(range(6))


def test_later_rounds_wait_for_the_first_in_their_place() -> None:
    injections = PLANS["full"].injections()
    assert len(injections) == 27
    openers = Counter(injection.opener for injection in injections)
    assert openers[-1] == 9 and all(openers[3 * place] == 2 for place in range(9))
    for injection in injections:
        if injection.opener >= 0:
            assert injections[injection.opener].nodes == injection.nodes


def test_an_unknown_plan_is_named() -> None:
    with pytest.raises(UnknownNameError, match="best"):
        published("best")
