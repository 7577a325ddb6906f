"""`--lora-rank` and its like on `plan`, `simulate` and `train`: the part that trains, to the exported folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.running import Runner, small_plan

from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.weights.hugging_face import load_hugging_face, save_hugging_face
from meshwright.specs import Plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model of `plan_file` with weights."""
    model = small_plan().model
    save_hugging_face(model, dict(build_model(model, seed=9).global_parameters()), tmp_path / "weights")
    return tmp_path / "weights"


def test_train_exports_merged_weights(
    run: Runner, folder: Path, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    runs, exported = tmp_path / "runs", tmp_path / "exported"
    ran = run(
        "train", plan_file, "--from", folder, "--iterations", 3, "--lora-rank", 2, "--lora-targets", "qkv, down",
        "--checkpoints", runs, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert run("checkpoint", "convert", runs, "--to", exported).code == 0
    model, found = load_hugging_face(exported)
    first = load_hugging_face(folder)[1]
    assert model.digest == small_plan().model.digest
    changed = {name.split(".")[-2] for name in found if not torch.equal(found[name], first[name])}
    assert changed == {"qkv", "down"}


def test_simulate_counts_what_trains(run: Runner, plan_file: Path) -> None:
    whole = run("simulate", plan_file, "--json").data
    adapted = run("simulate", plan_file, "--lora-rank", 2, "--lora-alpha", 4, "--json").data
    assert max(adapted["peak_bytes"]) < max(whole["peak_bytes"])
    head = run("simulate", plan_file, "--trained", "head.*, final_norm.*", "--json").data
    assert max(head["peak_bytes"]) < max(whole["peak_bytes"])


def test_plan_writes_the_part_into_its_file(run: Runner, profile: None, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "lora.toml"
    batch = ("--global-batch", 4, "--seq", 8, "--fix", "pp=1", "-o", path)
    ran = run("plan", folder, "2xcpu", *batch, "--lora-rank", 2, "--lora-targets", "qkv")
    assert ran.code == 0, ran.stderr
    model = Plan.load(path).model
    assert model.lora_rank == 2 and model.lora_targets == ("qkv",)
    assert run("simulate", path, "--lora-rank", 2, "--lora-targets", "qkv").code == 0
    refused = run("simulate", path, "--lora-rank", 3)
    assert refused.code == 2 and "says which part trains" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lora-targets", "qkv"), "--lora-rank 8"),
        (("--lora-rank", "2", "--lora-targets", "q_proj"), "attention_output"),
        (("--lora-rank", "0"), "greater than"),
        (("--trained", "nothing.*"), "nothing.*"),
    ],
)
def test_mistakes_are_said(run: Runner, plan_file: Path, words: tuple[str, ...], said: str) -> None:
    ran = run("simulate", plan_file, *words)
    assert ran.code == 2 and said in ran.stderr


def test_a_model_on_gpus_is_planned_whole(run: Runner) -> None:
    ran = run("plan", "gpt2", "2xH100", "--global-batch", 8, "--seq", 1024, "--lora-rank", 8)
    assert ran.code == 2 and "simulate PLAN --lora-rank 8" in " ".join(ran.stderr.split())
