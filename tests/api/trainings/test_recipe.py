"""What is chosen about a training: length, recipe, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.api.trainings.job import newest, with_recipe
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.lowering.sharding.gradient_norm import clip_norm
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import SpecError
from meshwright.specs.plan.optimizer import AdamW
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import Length, Recipe
from meshwright.specs.training.source import Source

PLAN = Plan.of(ModelSpec.decoder(2, 16, 2, max_sequence_length=16), Cluster.detect(2), Workload(8, 16), dp=2)


def test_tokens_are_steps_of_the_whole_batch() -> None:
    assert Length(tokens=8 * 16 * 3).num_steps(PLAN) == 3
    assert Length(tokens=8 * 16 * 3 + 1).num_steps(PLAN) == 4
    assert Length(iterations=2, tokens=10_000).num_steps(PLAN) == 2
    assert Length().num_steps(PLAN) == 20 and Length(seconds=5).num_steps(PLAN) is None


def test_warm_up_and_end_follow_the_number_of_steps() -> None:
    rates = Recipe(1.0).rates(1000)
    assert (rates.num_warmup, rates.num_steps) == (10, 1000) and rates.at(999) == pytest.approx(0.1)
    by_the_clock = Recipe(1.0).rates(None)
    assert by_the_clock.at(0) == by_the_clock.at(10**6) == 1.0
    assert Recipe(1.0, warmup=3).rates(1000).num_warmup == 3


def test_counted_in_tokens_the_rate_goes_on_where_it_was_whatever_the_batch() -> None:
    """Ten steps of 8 sequences, then on with batches of 2: the rates of tokens, not of steps."""
    length, per_step, small = Length(tokens=8 * 16 * 20), 8 * 16, PLAN.changed(workload=Workload(2, 16))
    whole = Recipe(1.0, warmup=0).rates(length.num_steps(PLAN))
    done, lead = 10 * per_step, length.lead(small, 10, 10 * per_step)
    num_steps = length.num_steps(small, 10, done)
    assert num_steps == 10 + 40 and lead == 30
    rates = Recipe(1.0, warmup=0).rates(num_steps, lead)
    assert rates.at(10) == pytest.approx(whole.at(10), abs=0.05)  # half of the way, but for the first step
    assert rates.at(num_steps - 1) == pytest.approx(whole.at(19))
    assert length.lead(PLAN, 10, done) == 0.0 and length.lead(small) == 0.0
    assert Length(iterations=50).lead(small, 10, done) == 0.0


def test_a_norm_to_clip_at_is_a_pass_of_the_plan() -> None:
    assert clip_norm(PLAN) is None and with_recipe(PLAN, Recipe()) is PLAN
    small = with_recipe(PLAN, Recipe(clip=0.5))
    assert clip_norm(small) == 0.5 and clip_norm(with_recipe(small, Recipe(clip=2.0))) == 2.0
    made = OptimizerConfig.of(Recipe(weight_decay=0.3, betas=(0.8, 0.9)), "adamw", 1.5)
    assert (made.weight_decay, made.rule, made.clip_norm) == (0.3, AdamW((0.8, 0.9)), 1.5)


def test_devices_that_share_sequences_tell_what_is_counted() -> None:
    """A capacity by position and a balance need numbers of experts, a capacity by probability their gates, too."""
    experts = ModelSpec.decoder(2, 16, 2, max_sequence_length=16).changed(
        architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=16
    )
    shared = Plan.of(experts, Cluster.detect(2), Workload(8, 16), cp=2)
    wanted = {
        "none": Recipe(z_loss=0.1), "experts": Recipe(balance_loss=0.1, capacity_factor=1.0),
        "gates": Recipe(capacity_factor=1.0, drop="probability"),
    }  # fmt: skip
    for told, recipe in wanted.items():
        plan = with_recipe(shared, recipe)
        assert plan.shared_choices == told
        recipe.capacity.check(plan)
        recipe.router.check(plan)
        assert with_recipe(shared.changed(cp=1, dp=2), recipe).passes == ()
        divided = shared.changed(cp=1, tp=2, ep=2, etp=1, sequence_parallel=True)
        assert with_recipe(divided, recipe).shared_choices == told
    samples = shared.changed(cp=1, tp=2, ep=2, etp=1, microbatch_size=2)
    assert with_recipe(samples, wanted["gates"]).passes == (), "each of two looks after a sample"
    assert with_recipe(samples.changed(microbatch_size=1), wanted["gates"]).shared_choices == "gates"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Length(iterations=0),
        lambda: Length(tokens=0),
        lambda: Length(seconds=0.0),
        lambda: Recipe(weight_decay=-1),
        lambda: Recipe(betas=(0.9, 1.0)),
        lambda: Recipe(-1.0).rates(10),
        lambda: Source(evaluate_every=-1),
        lambda: Source(num_evaluated=0),
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]


def test_a_folder_with_a_training_is_not_begun_again(tmp_path: Path) -> None:
    folder = tmp_path
    assert newest(Checkpoints(folder)) is None
    made = folder / "step-4"
    made.mkdir()
    (made / "checkpoint.json").write_text("{}")
    with pytest.raises(SpecError, match="holds a training already"):
        newest(Checkpoints(folder))
    assert newest(Checkpoints(folder, resumes=True)) == made
