"""`--variant` on `plan`, `simulate` and `train`: another model made of the one that is given."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.running import Runner

from meshwright.api.exchange.variant import ModelVariant
from meshwright.catalog.slots import slot_names
from meshwright.executor.job.pool import Pool
from meshwright.specs import Plan
from meshwright.specs.error import PlanError, SpecError

LADDER = "ladder_residual"


def test_plan_writes_the_variant_into_its_file(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    job = ("llama-3.2-1b", "1x8xH100", "--global-batch", 8, "--seq", 2048, "--fix", "tp=8")
    ran = run("plan", *job, "--variant", LADDER, "-o", path, "--json")
    assert ran.code == 0, ran.stderr
    plan = Plan.load(path)
    assert plan.variant == LADDER and plan.model.has_ladder_residual
    assert ModelVariant(LADDER).of_plan(path) == plan


def test_a_variant_in_a_file_that_nobody_knows_is_refused(run: Runner, tmp_path: Path) -> None:
    """Also where the model of the file is another one already."""
    path = tmp_path / "plan.toml"
    job = ("llama-3.2-1b", "1x8xH100", "--global-batch", 8, "--seq", 2048, "--fix", "tp=8,recompute=none")
    assert run("plan", *job, "--variant", LADDER, "-o", path).code == 0
    path.write_text(path.read_text().replace(f'variant = "{LADDER}"', 'variant = "ladder_residul"'))
    for verb in ("check", "simulate"):
        ran = run(verb, path)
        assert ran.code == 2 and "ladder_residul" in ran.stderr and f"did you mean {LADDER}" in ran.stderr


def test_a_variant_in_a_file_that_made_another_model_is_told_apart(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    job = ("llama-3.2-1b", "1x8xH100", "--global-batch", 8, "--seq", 2048, "--fix", "tp=8,recompute=none")
    assert run("plan", *job, "--variant", LADDER, "-o", path).code == 0
    path.write_text(path.read_text().replace(f'variant = "{LADDER}"', 'variant = "shallow_again"'))
    ran = run("simulate", path)
    assert ran.code == 2 and "the model is not what variant shallow_again makes" in ran.stderr


def test_sums_of_a_ladder_are_hidden_on_gpus(run: Runner, tmp_path: Path) -> None:
    """The same plan for the same sizes: what it gains is what its sums took, nearly."""
    path = tmp_path / "plan.toml"
    job = (
        "llama-3.1-8b",
        "1x8xH100",
        "--global-batch",
        8,
        "--seq",
        4096,
        "--fix",
        "tp=8,sequence_parallel=no,token_parts=1",
    )
    assert run("plan", *job, "-o", path).code == 0
    standard = run("simulate", path, "--cluster", "1x8xH100", "--json").data
    ladder = run("simulate", path, "--cluster", "1x8xH100", "--variant", LADDER, "--json").data
    assert ladder["period"] < 0.85 * standard["period"]


def test_train_runs_it(run: Runner, plan_file: Path, profile: None, shared_pool: Pool) -> None:
    losses = [
        run("train", plan_file, "--iterations", 2, *more, "--json").data["losses"]
        for more in ((), ("--variant", LADDER))
    ]
    assert losses[0] != losses[1]


def test_two_variants_are_refused(plan_file: Path) -> None:
    with pytest.raises(SpecError, match="--fix"):
        ModelVariant(LADDER).in_fix({"variant": "./mine.py:other"})
    with pytest.raises(SpecError, match="--like"):
        ModelVariant(LADDER).refuse("--like")
    with pytest.raises(PlanError, match=LADDER):
        ModelVariant("./mine.py:other").of_plan(ModelVariant(LADDER).of_plan(plan_file))
    assert ModelVariant().in_fix({"tp": 2}) == {"tp": 2}


def test_its_help_names_all_of_ours() -> None:
    (variant,) = (each for each in fields(ModelVariant) if each.name == "variant")
    text = str(variant.metadata)
    assert all(name in text for name in slot_names("variant"))
