"""Plans in words."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.prediction.description import LONGEST_LAYERS, describe, layers_words, recompute_words
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

MODEL = ModelSpec.decoder(8, 64, 4)


def plan(**choices: Any) -> Plan:
    return Plan.of(MODEL, Cluster("4xcpu"), Workload(16, 128), pp=2, **choices)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({}, ""),
        ({"recompute": "full"}, "recompute"),
        ({"recompute": "selective"}, "recompute selective"),
        ({"recompute": "full", "recompute_blocks": (3, 2)}, "recompute 5 of 8 blocks"),
        ({"recompute": "full", "recompute_blocks": (4, 4)}, "recompute"),
        ({"recompute": "selective", "recompute_blocks": (0, 1)}, "recompute selective 1 of 8 blocks"),
    ],
)
def test_recompute_is_said_with_its_blocks_where_not_all(choices: dict[str, Any], words: str) -> None:
    chosen = plan(**choices)
    assert recompute_words(chosen) == words
    assert describe(chosen) == f"pp=2 dp=2 1f1b microbatch 1 {words}".strip()


def test_what_is_usual_is_left_out() -> None:
    assert describe(plan(cp=2, context="ring")) == "pp=2 dp=1 cp=2 1f1b microbatch 1"
    assert describe(plan(cp=2, context="ulysses")) == "pp=2 dp=1 cp=2 context ulysses 1f1b microbatch 1"
    assert describe(plan(context="ulysses")) == "pp=2 dp=2 1f1b microbatch 1"
    assert describe(plan(split_backward=True, sharding="zero1")) == (
        "pp=2 dp=2 zero1 1f1b microbatch 1 split backward"
    )


def test_layers_are_told_in_runs_and_in_few_characters() -> None:
    assert layers_words([1, *[2] * 62, 1]) == "1+62x2+1"
    assert layers_words([3, 2]) == "3+2" and layers_words([4, 4, 3, 3]) == "4+4+3+3"
    told = layers_words([place % 3 + 1 for place in range(64)])
    assert told == "1 to 3 on each of 64 stages" and len(told) <= LONGEST_LAYERS
