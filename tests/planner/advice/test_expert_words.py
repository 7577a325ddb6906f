"""What a plan says of its all-to-alls: what they take, what hides them, and what else could."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.advice.expert_words import expert_exchange, expert_line
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

CLUSTER = Cluster("2x8xH100")


def found(**choices: Any) -> Predicted:
    plan = Plan.of(
        load_model("mixtral-8x7b"), CLUSTER, Workload(32, 4096), dtype="bfloat16", sharding="zero1", **choices
    )
    return predict(plan, CLUSTER)


def test_nothing_hides_whole_microbatches() -> None:
    told = found(ep=8)
    sent = expert_exchange(told)
    assert sent is not None and sent.hidden_s == 0.0 < sent.seconds < told.step.value
    (line,) = expert_line(told)
    assert "nothing hides them" in line and "--fix overlap=reduce+ep" in line


def test_experts_of_another_microbatch_hide_them() -> None:
    told = found(ep=8, overlap=("reduce", "ep"))
    sent, bare = expert_exchange(told), expert_exchange(found(ep=8))
    assert sent is not None and bare is not None
    assert sent.seconds == pytest.approx(bare.seconds) and 0.0 < sent.hidden_s <= sent.seconds
    assert "experts of another microbatch hide" in expert_line(told)[0]


def test_parts_hide_them_as_rows() -> None:
    told = found(ep=8, microbatch_size=2, token_parts=2)
    sent = expert_exchange(told)
    assert sent is not None and 0.0 < sent.hidden_s <= sent.seconds
    assert "computes of another part hide" in expert_line(told)[0]


def test_experts_of_ones_own_send_nothing() -> None:
    assert expert_exchange(found()) is None and expert_line(found()) == []
