"""Frozen parameters and low-rank additions under every layout of training: each equals one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.adapted_case import adapted_reference, gradient_difference
from tests.covering import always
from tests.training_case import ADAMW, SEQUENCE, SGD, largest_difference

from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor import run_training
from meshwright.executor.capability import check_plan
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.lowering.lower import lower
from meshwright.lowering.sharding.canonical import CANONICAL
from meshwright.schedules import registered
from meshwright.specs import Cluster, PassOption, Plan, Workload
from meshwright.specs.model.adaptation import LORA_TARGETS
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.stage.mesh import data_axes

TOLERANCE, ADAMW_TOLERANCE = 1e-10, 1e-8
ITERATIONS, BATCH = 3, 8
MODEL = ModelSpec.decoder(4, 16, 2, vocabulary_size=32, max_sequence_length=SEQUENCE)
LORA = replace(MODEL, lora_rank=3, lora_alpha=6.0, lora_targets=LORA_TARGETS)
# heads that are normed, biases and grouped queries; of what has an addition a part trains, too
QWEN3 = MODEL.changed(architecture="qwen3", num_heads=4, head_dim=4, has_query_key_norm=True)
SOME = replace(
    QWEN3, lora_rank=2, lora_targets=("qkv", "down"), trained=("*norm.*", "layers.1.qkv.weight", "head.*")
)
GPT = replace(
    ModelSpec.gpt(
        4, 16, 2, vocabulary_size=32, max_sequence_length=SEQUENCE, name="gpt", source="given by dimensions"
    ),
    lora_rank=2,
    lora_targets=("qkv", "attention_output", "gate_up", "down"),
    trained=("positions.*", "layers.*.bias", "final_norm.*"),
)
UPPER = replace(MODEL, trained=("layers.3.*", "final_norm.*", "head.*"))  # nothing on a first stage of two
TIED = replace(MODEL, has_tied_embeddings=True, trained=("layers.2.*", "embedding.*"))
FROZEN_TIED = replace(MODEL, has_tied_embeddings=True, lora_rank=2, lora_targets=("qkv",))
EXPERTS = MODEL.changed(
    architecture="qwen2_moe", num_experts=4, num_experts_per_token=2, expert_intermediate_size=12,
    shared_intermediate_size=8, dense_layers=(1,),
)  # fmt: skip
EXPERTS_LORA = replace(EXPERTS, lora_rank=2, lora_targets=("qkv", "attention_output"))
SOME_EXPERTS = replace(
    EXPERTS, trained=("*.router.*", "layers.2.mixture.expert_*", "layers.3.mixture.shared*")
)
LATENT = MODEL.changed(
    architecture="deepseek_v2", key_value_rank=6, rotary_head_dim=4, value_head_dim=6, query_rank=5
)
SOME_LATENT = replace(LATENT, trained=("layers.*.latent_attention.*",))
LATENT_LORA = replace(LATENT, lora_rank=2, lora_targets=("attention_output", "gate_up", "down"))
MIXTURES: list[tuple[ModelSpec, dict[str, Any]]] = [
    (EXPERTS_LORA, {"dp": 2, "sharding": "zero3"}),
    (SOME_EXPERTS, {"pp": 2, "split_backward": True}),
    (SOME_EXPERTS, {"tp": 2, "recompute": "full"}),
    (EXPERTS_LORA, {"tp": 2, "pp": 2, "sequence_parallel": True}),
    (SOME_EXPERTS, {"dp": 2, "pp": 2, "sharding": "zero3"}),
    (SOME_LATENT, {"tp": 2, "split_backward": True}),
    (LATENT_LORA, {"dp": 2, "sharding": "zero3"}),
]
SHARDED: list[tuple[ModelSpec, dict[str, Any]]] = [
    (LORA, {"dp": 2, "sharding": "zero1"}),
    (SOME, {"dp": 2, "sharding": "zero2"}),
    (LORA, {"dp": 2, "sharding": "zero3"}),
    (SOME, {"dp": 2, "pp": 2, "sharding": "zero3", "recompute": "full"}),
    (UPPER, {"dp": 2, "pp": 2, "sharding": "zero3"}),  # a group of which nothing trains is gathered
    (UPPER, {"dp": 2, "pp": 2, "sharding": "zero1"}),
    (TIED, {"dp": 2, "pp": 2, "sharding": "zero3"}),
    (FROZEN_TIED, {"dp": 2, "pp": 2, "sharding": "zero3"}),  # each end has its own shards of the table
    (FROZEN_TIED, {"dp": 2, "schedule": "interleaved_1f1b", "sharding": "zero3", "num_chunks": 2}),
    (GPT, {"dp": 2, "tp": 2, "sharding": "zero3"}),
    (SOME, {"dp": 2, "tp": 2, "sharding": "zero3", "sequence_parallel": True}),
    (GPT, {"dp": 2, "tp": 2, "sharding": "zero2"}),
    (LORA, {"dp": 4, "sharding": "zero3", "sharding_degree": 2}),
    (SOME, {"dp": 2, "sharding": "zero3", "passes": (PassOption("offload_optimizer"),)}),
    (LORA, {"dp": 2, "tp": 2, "sharding": "zero1", "passes": (PassOption(CANONICAL),)}),
]
SPLIT: list[tuple[ModelSpec, dict[str, Any]]] = [
    (LORA, {"pp": 2, "vocabulary": "one_barrier"}),
    (FROZEN_TIED, {"pp": 2, "vocabulary": "two_barriers", "split_backward": True}),
    (SOME, {"pp": 2, "dp": 2, "vocabulary": "two_barriers", "sharding": "zero1"}),
    (LORA, {"pp": 2, "dp": 2, "vocabulary": "one_barrier", "sharding": "zero3"}),
    (replace(LORA, trained=("embedding.*",)), {"pp": 2, "vocabulary": "interlaced"}),
]
SP: dict[str, Any] = {"sequence_parallel": True}
TENSOR: list[tuple[ModelSpec, dict[str, Any]]] = [
    (LORA, {"tp": 2}),
    (LORA, {"tp": 2, **SP, "recompute": "full"}),
    (SOME, {"tp": 2, "pp": 2, **SP}),
    (SOME, {"tp": 2, "dp": 2}),
    (GPT, {"tp": 2, "pp": 2}),
    (GPT, {"tp": 2, **SP, "dp": 2}),
    (FROZEN_TIED, {"tp": 2, "pp": 2, "split_backward": True}),
    (LORA, {"tp": 2, "pp": 2, "split_backward": True, **SP}),
    (SOME, {"tp": 2, "microbatch_size": 4, "token_parts": "1:3", "split_backward": True}),
    (UPPER, {"tp": 2, "pp": 2}),  # what is due of the first stage is nothing, in segments, too
    (UPPER, {"tp": 2, "pp": 2, "split_backward": True, **SP}),
    (UPPER, {"tp": 2, "dp": 2, "pp": 1, "sharding": "zero1"}),
]


def cases(table: Sequence[object], quick: set[int]) -> list[Any]:
    """Numbers of all rows; those that are not `quick` are tried with the slow tests."""
    slow = (pytest.mark.slow,)
    return [pytest.param(number, marks=() if number in quick else slow) for number in range(len(table))]


@pytest.mark.parametrize("number", cases(TENSOR, {2}))
def test_tensor_parallel(number: int, gloo_pool: Pool) -> None:
    model, choices = TENSOR[number]
    check_equal(model, choices, ADAMW if number % 2 else SGD, gloo_pool)


@pytest.mark.parametrize("number", cases(SHARDED, {3, 4}))
def test_sharded(number: int, gloo_pool: Pool) -> None:
    model, choices = SHARDED[number]
    check_equal(model, choices, SGD if number % 3 == 1 else ADAMW, gloo_pool)


@pytest.mark.parametrize("number", cases(MIXTURES, {0, 5}))
def test_experts_and_latent_attention(number: int, gloo_pool: Pool) -> None:
    model, choices = MIXTURES[number]
    check_equal(model, choices, ADAMW if number % 2 else SGD, gloo_pool)


@pytest.mark.parametrize("number", cases(SPLIT, {1, 3}))
def test_split_vocabulary(number: int, gloo_pool: Pool) -> None:
    model, choices = SPLIT[number]
    check_equal(model, choices, SGD if number % 2 else ADAMW, gloo_pool)


def test_a_checkpoint_goes_on_under_another_layout(gloo_pool: Pool, tmp_path: Path) -> None:
    """Of both factors whole tensors are put together: divided along tp, or shards of a flat buffer."""
    layouts: list[dict[str, Any]] = [
        {"tp": 2, "pp": 2},
        {"dp": 2, "sharding": "zero3"},
        {"dp": 2, "tp": 2, "sharding": "zero1"},
    ]
    losses, _, module = adapted_reference(SOME, ADAMW, BATCH, len(layouts))
    found: list[float] = []
    for step, choices in enumerate(layouts):
        plan = plan_of(SOME, choices)
        before = str(tmp_path / f"step-{step}") if step else ""
        told = replace(training_of(plan, ADAMW), first_step=step)
        kept = CheckpointConfig(Checkpoints(str(tmp_path), every=1), resume_from=before)
        program = lower(plan, registered()[plan.schedule], in_segments=True)
        result = gloo_pool.run(Job.of(program, 1, training=told, dtype="float64", checkpoints=kept))
        found += result.losses
    assert found == pytest.approx(losses, rel=TOLERANCE)
    expected = {name: p.detach() for name, p in module.named().items()}
    assert largest_difference(result.parameters, expected) < ADAMW_TOLERANCE


@pytest.mark.parametrize("choices", always([{"dp": 2, "sharding": "zero3"}, {"tp": 2}, {"tp": 2, **SP}], {0}))
def test_measured_peaks_are_the_predicted_ones(choices: dict[str, Any], gloo_pool: Pool) -> None:
    """Within a tenth, and below those of the model all of which trains."""
    wide = ModelSpec.decoder(4, 128, 4, vocabulary_size=512, max_sequence_length=64)
    measured = {}
    for model in (wide, replace(wide, lora_rank=4, lora_targets=LORA_TARGETS)):
        degrees = {"pp": 1, "dp": 1, "tp": 1, **choices}
        plan = Plan.of(model, Cluster("2xcpu"), Workload(4, 64), **{"dtype": "float32", **degrees})
        done = train_plan(plan, source=RANDOM, iterations=2, pool=gloo_pool)
        assert done.trace is not None
        peaks = [max(peak_bytes(t, device) for device in range(2)) for t in (done.trace, done.predicted)]
        measured[model] = peaks[0]
        assert peaks[0] == pytest.approx(peaks[1], rel=0.1)
    whole, adapted = measured.values()
    assert adapted < 0.8 * whole


def check_equal(model: ModelSpec, choices: dict[str, Any], optimizer: OptimizerConfig, pool: Pool) -> None:
    """Losses, every gradient and the parameters behind the last step are those of one process."""
    plan = plan_of(model, choices)
    program, training = (
        lower(plan, registered()[plan.schedule], in_segments=True),
        training_of(plan, optimizer),
    )
    result = run_training(program, training, ITERATIONS, pool=pool, dtype="float64")
    losses, gradients, module = adapted_reference(model, optimizer, BATCH, ITERATIONS)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        assert gradient_difference(ours, theirs) < TOLERANCE
    expected = {name: p.detach() for name, p in module.named().items()}
    tolerance = TOLERANCE if optimizer is SGD else ADAMW_TOLERANCE
    assert largest_difference(result.parameters, expected) < tolerance


def plan_of(model: ModelSpec, choices: dict[str, Any]) -> Plan:
    """A plan in float64 on as many processes as its degrees say."""
    degrees = {"pp": 1, "dp": 1, "tp": 1, **choices}
    cluster = Cluster(f"{degrees['pp'] * degrees['dp'] * degrees['tp']}xcpu")
    plan = Plan.of(model, cluster, Workload(BATCH, SEQUENCE), **{"dtype": "float64", **degrees})
    check_plan(plan)
    return plan


def training_of(plan: Plan, optimizer: OptimizerConfig) -> TrainingConfig:
    """Every gradient of every iteration comes back."""
    return TrainingConfig(
        plan.model,
        plan.layers_per_stage,
        SEQUENCE,
        optimizer,
        source=RANDOM,
        records_gradients=True,
        layout=TensorLayout.of(plan),
        data_axes=data_axes(plan),
    )
