"""Plans whose vocabulary is split over the pipeline: what `lower` makes of them trains what one process trains."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor import run_training
from meshwright.executor.capability import check_plan
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import Cluster, ModelSpec, PassOption, Plan, PlanError, Workload
from tests.covering import always, covered
from tests.training_case import ADAMW, SGD, largest_difference, reference

SEQUENCE, BATCH = 8, 8
MODEL = ModelSpec.decoder(9, 16, 2, num_kv_heads=1, vocabulary_size=37, max_sequence_length=SEQUENCE)
TIED = replace(MODEL, has_tied_embeddings=True)
POSITIONS = ModelSpec.gpt(
    8, 16, 2, vocabulary_size=37, max_sequence_length=SEQUENCE, name="positions", source="made up"
)
SPLIT = ("one_barrier", "two_barriers", "interlaced")


def plan_of(vocabulary: str, model: ModelSpec = MODEL, **choices: Any) -> Plan:
    """Up to four processes, eight samples, float64."""
    num_devices = choices.get("pp", 1) * choices.get("dp", 1)
    return Plan.of(
        model, Cluster(f"{num_devices}xcpu"), Workload(BATCH, SEQUENCE), vocabulary=vocabulary,
        **{"dtype": "float64", **choices},
    )  # fmt: skip


def program_of(plan: Plan) -> Program:
    return lower(plan, registered()[plan.schedule], in_segments=True)


def training_of(plan: Plan, optimizer: OptimizerConfig) -> TrainingConfig:
    return TrainingConfig(
        plan.model,
        plan.layers_per_stage,
        SEQUENCE,
        optimizer,
        source=RANDOM,
        records_gradients=True,
        layout=TensorLayout.of(plan),
    )


LAYOUTS: list[tuple[ModelSpec, dict[str, Any]]] = [
    (MODEL, {"pp": 2}),
    (MODEL, {"pp": 4, "recompute": "full"}),
    (MODEL, {"pp": 2, "dp": 2, "split_backward": True}),
    (MODEL, {"pp": 2, "dp": 2, "sharding": "zero1", "recompute": "full"}),
    (MODEL, {"pp": 2, "dp": 2, "sharding": "zero2"}),
    (TIED, {"pp": 2, "dp": 2, "sharding": "zero3"}),
    (MODEL, {"pp": 2, "schedule": "v_half", "dp": 2, "overlap": ()}),
    (TIED, {"pp": 4, "schedule": "zb_h1", "recompute": "full"}),
    (TIED, {"pp": 2, "dp": 2, "schedule": "interleaved_1f1b"}),
    (POSITIONS, {"pp": 4, "split_backward": True, "recompute": "full", "layers_per_stage": (1, 3, 1, 3)}),
]
REFUSED = [choices for _, choices in LAYOUTS if "schedule" in choices]  # of the interlaced vocabulary
PLANS = [
    (vocabulary, model, choices)
    for vocabulary in SPLIT
    for model, choices in LAYOUTS
    if vocabulary != "interlaced" or choices not in REFUSED
]


def choices_of(vocabulary: str, model: ModelSpec, choices: dict[str, Any]) -> dict[str, Any]:
    """All that a plan chooses, by name."""
    unchosen = {"dp": 1, "schedule": "1f1b", "sharding": "none", "recompute": "none", "split_backward": False}
    tied = model.has_tied_embeddings
    return {"vocabulary": vocabulary, "model": model.architecture, "tied": tied, **unchosen, **choices}


def said(value: object) -> str:
    """Of a parameter, in the name of a test."""
    if isinstance(value, ModelSpec):
        return "tied" if value.has_tied_embeddings and value.name != "positions" else value.name
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("choices", REFUSED, ids=said)
def test_the_interlaced_vocabulary_is_refused_with_other_schedules(choices: dict[str, Any]) -> None:
    plan = plan_of("interlaced", **choices)
    with pytest.raises(PlanError, match=f"vocabulary=interlaced with schedule={plan.schedule}"):
        check_plan(plan)


@pytest.mark.parametrize(
    ("vocabulary", "model", "choices"), covered(PLANS, [choices_of(*each) for each in PLANS], 1), ids=said
)
def test_a_plan_trains_what_one_process_trains(
    gloo_pool: Pool, model: ModelSpec, choices: dict[str, Any], vocabulary: str
) -> None:
    """Loss, every gradient of the first step and all parameters, in float64; two steps of SGD."""
    plan = plan_of(vocabulary, model, **choices)
    check_plan(plan)
    result = run_training(program_of(plan), training_of(plan, SGD), 2, pool=gloo_pool, dtype="float64")
    wanted = reference(model, SGD, BATCH, 2)
    assert result.losses == pytest.approx(wanted.losses, rel=1e-12)
    assert largest_difference(result.gradients[0], wanted.gradients[0]) < 1e-10
    assert largest_difference(result.parameters, wanted.parameters) < 1e-10


@pytest.mark.parametrize(
    ("vocabulary", "model"), always([*product(SPLIT, (MODEL, TIED))], {0, 3, 4}), ids=said
)
def test_contributions_kept_apart_have_those_of_the_tables(
    gloo_pool: Pool, vocabulary: str, model: ModelSpec
) -> None:
    """A microbatch adds to a stage's groups several times: its blocks, its rows of the head, its rows of the embedding."""
    plan = plan_of(vocabulary, model, pp=2, dp=2, passes=(PassOption("canonical_reduction", {}),))
    result = run_training(program_of(plan), training_of(plan, SGD), 2, pool=gloo_pool, dtype="float64")
    wanted = reference(model, SGD, BATCH, 2)
    assert largest_difference(result.gradients[0], wanted.gradients[0]) < 1e-10
    assert largest_difference(result.parameters, wanted.parameters) < 1e-10


def test_adamw_steps_the_rows_and_leaves_the_padding(gloo_pool: Pool) -> None:
    plan = plan_of("one_barrier", pp=4)
    result = run_training(program_of(plan), training_of(plan, ADAMW), 3, pool=gloo_pool, dtype="float64")
    wanted = reference(MODEL, ADAMW, BATCH, 3)
    assert largest_difference(result.parameters, wanted.parameters) < 1e-8


def held_out(vocabulary: str, pool: Pool) -> list[float | None]:
    """Held-out losses of two steps."""
    plan = plan_of(vocabulary, pp=2, dp=2)
    training = replace(training_of(plan, SGD), source=replace(RANDOM, evaluate_every=1, num_evaluated=2))
    result = run_training(program_of(plan), training, 2, pool=pool, dtype="float64")
    return [iteration.held_out_loss for iteration in result.iterations]


@pytest.fixture(scope="module")
def held_out_at_the_ends(gloo_pool: Pool) -> list[float | None]:
    """Of tables that are not split, run once."""
    return held_out("ends", gloo_pool)


@pytest.mark.parametrize("vocabulary", always(SPLIT, {0}))
def test_the_held_out_loss_is_that_of_tables_at_the_ends(
    gloo_pool: Pool, vocabulary: str, held_out_at_the_ends: list[float | None]
) -> None:
    found = held_out(vocabulary, gloo_pool)
    assert None not in found and found == pytest.approx(held_out_at_the_ends, rel=1e-12)


def test_sixteen_bits_keep_the_softmax_in_float32(gloo_pool: Pool) -> None:
    """bfloat16 with a master copy: near the float64 loss of one process, and gradients of float32 are reduced."""
    plan = plan_of(
        "one_barrier", pp=2, dp=2, dtype="bfloat16", master_dtype="float32", reduction_dtype="float32"
    )
    result = run_training(program_of(plan), training_of(plan, SGD), 2, pool=gloo_pool, dtype="bfloat16")
    assert result.losses == pytest.approx(reference(MODEL, SGD, BATCH, 2).losses, rel=1e-2)
    assert result.parameters["head.weight"].shape == (37, 16)


def train_losses(vocabulary: str, pool: Pool) -> list[float]:
    """Of two steps through `train`, which runs the program that it predicted."""
    plan = plan_of(vocabulary, replace(MODEL, vocabulary_size=256), pp=2, dp=2)
    done = train_plan(plan, iterations=2, pool=pool, measures_memory=False)
    assert done.trace is not None
    assert done.trace.program.digest() == done.predicted.program.digest()
    return done.result.losses


@pytest.fixture(scope="module")
def losses_at_the_ends(gloo_pool: Pool) -> list[float]:
    """Of tables that are not split, run once."""
    return train_losses("ends", gloo_pool)


@pytest.mark.parametrize("vocabulary", always(SPLIT, {0}))
def test_train_runs_the_program_that_was_simulated(
    gloo_pool: Pool, vocabulary: str, losses_at_the_ends: list[float]
) -> None:
    """Through `train`: text as data, the losses of the plan whose tables are at the ends."""
    assert train_losses(vocabulary, gloo_pool) == pytest.approx(losses_at_the_ends, rel=1e-10)
    names = {effect.name for effect in program_of(plan_of(vocabulary, pp=2)).tables.effects}
    assert {"LOOKUP", "S", "T", "SCATTER"} <= names


def test_the_norm_that_clips_counts_every_row_once(gloo_pool: Pool) -> None:
    model, clip = replace(MODEL, vocabulary_size=256), PassOption("clip_gradients", {"max_norm": 0.25})
    results = [
        train_plan(
            plan_of(each, model, pp=4, passes=(clip,)), iterations=3, pool=gloo_pool, measures_memory=False
        ).result
        for each in ("two_barriers", "ends")
    ]
    norms = [[iteration.gradient_norm for iteration in result.iterations] for result in results]
    assert min(norms[1]) > 0.25 and norms[0] == pytest.approx(norms[1], rel=1e-10)
    assert results[0].losses == pytest.approx(results[1].losses, rel=1e-10)


def test_what_is_not_run_is_refused_with_its_reason() -> None:
    with pytest.raises(PlanError, match="does not run .*vocabulary=one_barrier with tp=2"):
        check_plan(
            Plan.of(
                MODEL.changed(num_kv_heads=2),
                Cluster("4xcpu"),
                Workload(BATCH, SEQUENCE),
                pp=2,
                dp=1,
                tp=2,
                vocabulary="one_barrier",
            )
        )
