"""Slowing from the command line: calibrate under it, plan by what was measured, train under it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner, rough_profile

from meshwright.executor.job.pool import Pool
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.slowing import Slowing

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}


@pytest.fixture
def slow_profile(tmp_path: Path) -> Path:
    """A profile in which process 1 takes three times as long as process 0."""
    path = tmp_path / "slow.profile.json"
    rough_profile(process_factors=(0.5, 1.5)).save(path)
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_slowed_profile_is_written_and_never_kept(
    run: Runner, monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def measured(num_processes: int, *, effort: str, progress: Any, slowing: Slowing) -> Profile:
        seen.append(slowing)
        return rough_profile(process_factors=(0.5, 1.5))

    monkeypatch.setattr("meshwright.executor.measure.measure.measure", measured)
    target = tmp_path / "slow.profile.json"
    ran = run("calibrate", "--slow-link", "0-1=50MB/s", "--slow-process", "1=3", "-o", target, "--json")
    assert ran.code == 0, ran.stderr
    assert seen == [Slowing.parse(["0-1=50MB/s"], ["1=3"])]
    assert ran.data["process_factors"] == [0.5, 1.5] and ran.data["path"] is None
    assert target.is_file() and not list(cache.rglob("*.json"))


def test_plan_by_a_profile_gives_the_slow_process_less(run: Runner, slow_profile: Path, config: Path) -> None:
    asked = (
        "plan",
        config,
        "2xcpu",
        "--global-batch",
        8,
        "--seq",
        64,
        "--fix",
        "pp=2,schedule=1f1b,recompute=none",
    )
    ran = run(*asked, "--profile", slow_profile, "--json")
    assert ran.code == 0, ran.stderr
    first = ran.data["plans"][0]
    assert "layers 5+1" in first["description"] or "layers 4+2" in first["description"]
    assert any("processes were measured to differ" in line for line in ran.data["assumptions"])


def test_train_takes_the_slowing_and_the_profile(
    run: Runner, plan_file: Path, slow_profile: Path, shared_pool: Pool
) -> None:
    ran = run(
        "train", plan_file, "--iterations", 2, "--profile", slow_profile,
        "--slow-link", "0-1=20MB/s", "--slow-process", "1=2", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert ran.data["num_iterations"] == 2


def test_mistakes_are_told(run: Runner, plan_file: Path, slow_profile: Path) -> None:
    for arguments, words in [
        (("train", plan_file, "--slow-link", "0-1"), "A-B=RATE"),
        (("train", plan_file, "--slow-process", "7=2"), "process 7 is slowed"),
        (("calibrate", "--slow-process", "1=2", "--from-log", plan_file, "--plan", plan_file), "--from-log"),
        (
            ("plan", "llama-3.1-8b", "8xH100", "--global-batch", 8, "--seq", 512, "--profile", slow_profile),
            "calibrate --from-log",
        ),
    ]:
        ran = run(*arguments)
        assert ran.code == 2 and words in ran.stderr, (arguments, ran.stderr)
