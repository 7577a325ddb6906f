"""`plan` and `simulate` with --sequence-groups: algorithms beside one degree and a bound, and the plan as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import Runner

JOB = (
    "plan",
    "llama-3.2-1b",
    "8xH100",
    "--global-batch",
    16,
    "--seq",
    "32k",
    "--fix",
    "sharding=none,recompute=full,tp=1",
)
ADAPTS = "static(adapts=True)"


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.json"
    path.write_text(str([500, 700, 900, 1500, 1500, 3000, 8000, 50_000]))
    return path


def test_plans_and_their_simulation_say_the_same(run: Runner, tmp_path: Path, lengths: Path) -> None:
    plan = tmp_path / "plan.toml"
    ran = run(*JOB, "--lengths", lengths, "--sequence-groups", ADAPTS, "-o", plan)
    assert ran.code == 0, ran.stderr
    for words in ("groups by", "no grouping", "over bound", "one degree"):
        assert words in ran.stdout, words
    planned = run(*JOB, "--lengths", lengths, "--sequence-groups", ADAPTS, "--json").data["plans"][0]
    told = run("simulate", plan, "--lengths", lengths, "--sequence-groups", ADAPTS, "--json").data
    assert [one["name"] for one in told["algorithms"]] == [one["name"] for one in planned["algorithms"]]
    assert told["num_batches"] == 16 and all(one["over_bound"] >= 1 for one in told["algorithms"])
    # the first of its batches are those of the search
    steps = [each["algorithms"][1]["steps_s"] for each in (planned, told)]
    assert steps[1][: len(steps[0])] == pytest.approx(steps[0], rel=1e-9)
    # the plan's file has lengths of its own
    assert run("simulate", plan, "--sequence-groups", "static", "--json").code == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--sequence-groups", "static"), "--lengths DATA"),
        (("--sequence-groups", "statik", "--lengths", "{lengths}"), "statik"),
        (("--sequence-groups", "static", "--lengths", "{lengths}", "--layer-wise"), "layer_wise"),
        (("--sequence-groups", "static", "--lengths", "{lengths}", "--fix", "cp=2"), "cp=2"),
    ],
)
def test_mistakes(run: Runner, lengths: Path, more: tuple[str, ...], said: str) -> None:
    ran = run(*JOB, *(word.format(lengths=lengths) for word in more))
    assert ran.code == 2 and said in ran.stderr, ran.stderr


def test_simulate_wants_a_plan_and_lengths(run: Runner, tmp_path: Path) -> None:
    ran = run("simulate", "--schedule", "1f1b", "--sequence-groups", "static")
    assert ran.code == 2 and "without a plan" in ran.stderr
    plan = tmp_path / "plan.toml"
    run(*JOB, "-o", plan)
    ran = run("simulate", plan, "--sequence-groups", "static")
    assert ran.code == 2 and "--lengths DATA" in ran.stderr
