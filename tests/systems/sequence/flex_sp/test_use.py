"""The commands of the card: plans for documents of many lengths, and trainings in groups that FlexSP decides."""

import random
from pathlib import Path

import pytest
from tests.cli.running import runner
from tests.executor.token_data import shards_of

from meshwright.specs import Cluster, ModelSpec, Plan, Workload

CONTEXT, VOCABULARY = 128, 100


@pytest.mark.slow
def test_documents_train_in_its_groups(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    drawn = random.Random(2)
    lengths = [min(CONTEXT, round(6 * drawn.paretovariate(0.8)) + 2) for _ in range(80)]
    data = shards_of(
        tmp_path, [[1 + drawn.randrange(VOCABULARY - 2) for _ in range(each)] for each in lengths]
    )
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=CONTEXT, vocabulary_size=VOCABULARY, name="small")
    plan = Plan.of(model, Cluster.detect(2), Workload(8, CONTEXT), dp=2, microbatch_size=1)
    plan.save(tmp_path / "plan.toml")
    run = runner(capsys)
    job = ("train", tmp_path / "plan.toml", "--data", data.folder, "--iterations", 3, "--json")
    found, static = (run(*job, "--sequence-groups", name).data for name in ("flex_sp", "static"))
    assert [step["groups"] for step in found["grouped_steps"]] != [
        step["groups"] for step in static["grouped_steps"]
    ]
    assert [step["tokens"] for step in found["grouped_steps"]] == [
        step["tokens"] for step in static["grouped_steps"]
    ]
    assert found["losses"] == pytest.approx(static["losses"], rel=1e-4)


def test_plans_are_beside_one_degree_and_the_bound(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawn = random.Random(0)
    lengths = [min(16_384, round(300 * drawn.paretovariate(0.9))) for _ in range(400)]
    (tmp_path / "lengths.json").write_text(str(lengths))
    given = {
        "--global-batch": 64,
        "--seq": 16_384,
        "--lengths": tmp_path / "lengths.json",
        "--sequence-groups": "flex_sp",
    }
    words = [word for pair in given.items() for word in pair]
    fixed = ("--fix", "tp=1", "--fix", "sharding=none", "--json")
    found = runner(capsys)("plan", "llama-3.2-1b", "1x8xA100", *words, *fixed).data
    steps = {each["name"]: each for each in found["plans"][0]["algorithms"]}
    assert 1 <= steps["flex_sp"]["over_bound"] <= 1.12
