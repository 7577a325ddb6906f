"""`train --sequence-groups`: of every step the groups, the predicted and the measured seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cli.running import Runner
from tests.executor.token_data import shards_of

from meshwright.specs import Cluster, ModelSpec, Plan, Workload

CONTEXT = 32


@pytest.mark.usefixtures("shared_pool")
def test_every_step_tells_its_groups(run: Runner, tmp_path: Path) -> None:
    drawn = random.Random(2)
    documents = [[1 + drawn.randrange(97) for _ in range(drawn.randrange(2, 60))] for _ in range(60)]
    shards = shards_of(tmp_path, documents)
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=CONTEXT, vocabulary_size=100, name="small")
    plan = Plan.of(model, Cluster.detect(2), Workload(4, CONTEXT), dp=2, microbatch_size=1)
    plan.save(tmp_path / "plan.toml")
    job = ("train", tmp_path / "plan.toml", "--data", shards.folder, "--iterations", 3)
    told = run(*job, "--sequence-groups", "static", "--metrics", tmp_path / "metrics.jsonl", "--json").data
    steps = told["grouped_steps"]
    assert [one["step"] for one in steps] == [1, 2, 3]
    assert all(one["groups"].endswith("x2") and one["predicted_s"] > 0 < one["measured_s"] for one in steps)
    assert '"groups": "' in (tmp_path / "metrics.jsonl").read_text()
    shown = run(*job, "--sequence-groups", "static(degree=1)")
    assert shown.code == 0, shown.stderr
    assert "groups (number x ranks)" in shown.stdout and "2x1" in shown.stdout and "predicted" in shown.stdout


def test_a_name_nobody_knows_is_refused(run: Runner, tmp_path: Path) -> None:
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=CONTEXT, name="small")
    Plan.of(model, Cluster.detect(2), Workload(4, CONTEXT), dp=2, microbatch_size=1).save(
        tmp_path / "plan.toml"
    )
    (tmp_path / "text.txt").write_text("a few words. " * 200)
    job = ("train", tmp_path / "plan.toml", "--data", tmp_path / "text.txt", "--iterations", 2)
    ran = run(*job, "--sequence-groups", "static(deg=2)")
    assert ran.code == 2 and "degree" in ran.stderr
