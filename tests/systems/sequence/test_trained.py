"""Systems that group sequences train: `Use:` of their cards on documents of a user, with the losses that any groups have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import api
from meshwright.executor.job.pool import Pool
from tests.api.trainings.test_grouped_steps import SAME, shards, trained
from tests.covering import always

__all__ = ["shards"]


@pytest.mark.parametrize("groups", always(["byte_scale(tokens=16)", "zeppelin(node=2, tokens=16)"], {1}))
def test_its_groups_give_the_losses_of_static_ones(groups: str, shards: Path, gloo_pool: Pool) -> None:
    own, static = (trained(shards, each, gloo_pool, 3) for each in (groups, "static(degree=4)"))
    assert own.result.losses == pytest.approx(static.result.losses, rel=SAME)
    assert [it.tokens for it in own.iterations] == [it.tokens for it in static.iterations]
    assert any(len(step.groups.split()) > 1 for step in own.metrics)  # of several sizes in one step


def test_a_plan_of_a_user_is_ranked_by_them(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([300] * 60 + [2000] * 8 + [16_000] * 2))
    names = ["byte_scale(tokens=4096)", "zeppelin(node=4, tokens=4096)"]
    (best, *_) = api.plan_groups(
        "llama-3.2-1b", "8xH100", names, global_batch=32, seq=16_384, lengths=path, num_batches=2,
        fix={"sharding": "zero1", "recompute": "none", "tp": 1},
    )  # fmt: skip
    assert set(names) <= set(best.steps)
