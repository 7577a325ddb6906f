"""Frozen parameters and low-rank additions: executed training equals one process, and what is frozen has no state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.adapted_case import adapted_reference, gradient_difference
from tests.covering import always
from tests.training_case import (
    ADAMW,
    SEQUENCE,
    SGD,
    Case,
    largest_difference,
    program_of,
    training_of,
)
from torch import Tensor

from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor import run_training
from meshwright.executor.capability import check_plan
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.export import export
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.weights.hugging_face import (
    HuggingFaceSource,
    load_hugging_face,
    save_hugging_face,
)
from meshwright.executor.models.weights.initialisation import RandomValues
from meshwright.executor.models.weights.merged_parameters import MergedParameters
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.lowering.lower import lower
from meshwright.lowering.transfer.stage_edge import parse_edges
from meshwright.schedules import registered
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints

TOLERANCE, ADAMW_TOLERANCE = 1e-10, 1e-8
ITERATIONS = 3
MODEL = ModelSpec.decoder(4, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=SEQUENCE)
HEADS = MODEL.changed(num_kv_heads=2)  # as many as tensor-parallel devices
LORA = replace(
    MODEL, lora_rank=3, lora_alpha=6.0, lora_targets=("qkv", "attention_output", "gate_up", "down")
)
SOME = replace(
    MODEL, lora_rank=2, lora_targets=("qkv",), trained=("head.weight", "layers.*norm.*", "layers.1.down.*")
)
UPPER = replace(MODEL, trained=("layers.3.*", "final_norm.*", "head.*"))
TIED = replace(MODEL, has_tied_embeddings=True, trained=("layers.2.*", "embedding.*"))


CASES = [
    Case("1f1b", 2, 2, model=LORA, num_replicas=2),
    Case("zb_h1", 2, 3, model=LORA, optimizer=ADAMW),
    Case("1f1b", 2, 2, "split recompute", model=SOME),
    Case("zb_h1", 2, 2, model=UPPER),  # nothing trains on the first stage
    Case("1f1b", 2, 2, model=UPPER, optimizer=ADAMW),
    Case("1f1b", 2, 2, model=TIED),
    Case("interleaved_1f1b", 1, 2, model=TIED),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_training_equals_one_process(case: Case, gloo_pool: Pool) -> None:
    result = run_training(program_of(case), training_of(case), ITERATIONS, pool=gloo_pool, dtype="float64")
    losses, gradients, module = adapted_reference(case.model, case.optimizer, case.global_batch, ITERATIONS)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        assert gradient_difference(ours, theirs) < TOLERANCE
    tolerance = TOLERANCE if case.optimizer is SGD else ADAMW_TOLERANCE
    expected = {name: p.detach() for name, p in module.named().items()}
    assert largest_difference(result.parameters, expected) < tolerance
    assert sum(p.numel() for p in result.parameters.values()) == case.model.num_trained_parameters


PLANS = [
    (LORA, {"pp": 2, "dp": 2, "split_backward": True}),
    (SOME, {"pp": 2, "dp": 2, "recompute": "full"}),
    (UPPER, {"pp": 2, "dp": 2}),  # nothing on the first stage is reduced
    (TIED, {"pp": 2, "dp": 2}),
    (
        replace(TIED, trained=("layers.1.*",)),
        {"pp": 4, "schedule": "zb_h1"},
    ),  # each end has its own frozen table
    (replace(HEADS, trained=("*norm.*", "layers.*.down.weight")), {"tp": 2, "pp": 2}),
    (replace(HEADS, trained=("*norm.*", "layers.*.qkv.*")), {"tp": 2, "pp": 2, "sequence_parallel": True}),
]


@pytest.mark.parametrize("number", always(range(len(PLANS)), {*range(len(PLANS) - 1)}))
def test_plans_train_what_one_process_trains(number: int, gloo_pool: Pool) -> None:
    model, choices = PLANS[number]
    plan = Plan.of(model, Cluster("4xcpu"), Workload(8, SEQUENCE), **{"dtype": "float64", "dp": 1, **choices})
    check_plan(plan)
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    training = TrainingConfig(
        model,
        plan.layers_per_stage,
        SEQUENCE,
        SGD,
        source=RANDOM,
        records_gradients=True,
        layout=TensorLayout.of(plan),
    )
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    losses, gradients, module = adapted_reference(model, SGD, 8, ITERATIONS)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, gradients, strict=True):
        assert gradient_difference(ours, theirs) < TOLERANCE
    assert (
        largest_difference(result.parameters, {n: p.detach() for n, p in module.named().items()}) < TOLERANCE
    )


def test_the_measured_peak_is_near_the_simulated_one(gloo_pool: Pool) -> None:
    """Of a model of which little trains, far below what it is when all of it does."""
    wide = ModelSpec.decoder(6, 64, 2, vocabulary_size=256, max_sequence_length=32)
    adapted = replace(wide, lora_rank=2, lora_targets=("qkv",))
    peaks = {}
    for model in (wide, adapted):
        plan = Plan.of(model, Cluster("2xcpu"), Workload(2, 32), dtype="float32", pp=2, dp=1)
        done = train_plan(plan, iterations=2, pool=gloo_pool)
        assert done.trace is not None
        peaks[model] = [
            (peak_bytes(done.trace, device), peak_bytes(done.predicted, device)) for device in range(2)
        ]
    for measured, simulated in peaks[adapted]:
        assert measured == pytest.approx(
            simulated, rel=0.2
        )  # the ledger has nothing of what lives inside a compute
    for (less, _), (more, _) in zip(peaks[adapted], peaks[wide], strict=True):
        assert less < 0.5 * more


def test_export_adds_the_additions(gloo_pool: Pool, tmp_path: Path) -> None:
    case = Case("1f1b", 2, 2, model=LORA)
    result = run_training(program_of(case), training_of(case), ITERATIONS, pool=gloo_pool, dtype="float64")
    whole = MergedParameters(LORA, result.parameters, RandomValues(LORA.num_layers))
    save_hugging_face(LORA, whole, tmp_path / "ours")
    model, again = load_hugging_face(tmp_path / "ours", torch.float64)
    assert model.digest == LORA.base.digest
    stage, adapted = build_model(model, torch.float64), build_model(LORA, torch.float64)
    stage.load_state_dict(again)
    adapted.load_state_dict(result.parameters, strict=False)
    tokens_BS, _ = RandomTokens(32).batch(1, 0, range(2), SEQUENCE)
    torch.testing.assert_close(stage(tokens_BS), adapted(tokens_BS), rtol=0, atol=TOLERANCE)
    fresh = build_model(LORA.base, torch.float64)
    assert float((stage(tokens_BS) - fresh(tokens_BS)).detach().abs().max()) > 1e-5


def test_checkpoints_have_what_trains_and_export_all(gloo_pool: Pool, tmp_path: Path) -> None:
    first = dict(build_model(MODEL, torch.float64, seed=9).global_parameters())
    save_hugging_face(MODEL, first, tmp_path / "first")
    model = replace(load_hugging_face(tmp_path / "first")[0], lora_rank=2, lora_targets=("down",))
    training = training_of(
        Case("1f1b", 2, 2, model=model), source=replace(RANDOM, weights=str(tmp_path / "first"))
    )
    program = program_of(Case("1f1b", 2, 2, model=model))

    def run(iterations: int, config: CheckpointConfig, **fields: Any) -> JobResult:
        told = replace(training, **fields)
        return gloo_pool.run(Job.of(program, iterations, training=told, dtype="float64", checkpoints=config))

    whole = run(3, CheckpointConfig(Checkpoints(str(tmp_path / "runs"), every=1)))
    middle = tmp_path / "runs" / "step-1"
    again = run(
        2, CheckpointConfig(Checkpoints(str(tmp_path / "again")), resume_from=str(middle)), first_step=1
    )
    assert again.losses == whole.losses[1:]
    assert all(torch.equal(again.parameters[name], value) for name, value in whole.parameters.items())
    with pytest.raises(SpecError, match="train with --from"):
        run(
            2,
            CheckpointConfig(Checkpoints(str(tmp_path / "wrong")), resume_from=str(middle)),
            first_step=1,
            source=RANDOM,
        )
    export(tmp_path / "again" / "step-3", tmp_path / "exported", "hugging_face")
    found = load_hugging_face(tmp_path / "exported", torch.float64)[1]
    expected = MergedParameters(model, whole.parameters, HuggingFaceSource(tmp_path / "first", model))
    assert set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(found["head.weight"], first["head.weight"])
    assert not torch.equal(found["layers.0.down.weight"], first["layers.0.down.weight"])


def test_additions_to_a_folder(gloo_pool: Pool, tmp_path: Path) -> None:
    first = dict(build_model(MODEL, torch.float64, seed=9).global_parameters())
    save_hugging_face(MODEL, first, tmp_path / "first")
    model = replace(load_hugging_face(tmp_path / "first")[0], lora_rank=2, lora_targets=("down",))
    case = Case("1f1b", 2, 2, model=model)
    training = training_of(case, source=replace(RANDOM, weights=str(tmp_path / "first")))
    result = run_training(program_of(case), training, 1, pool=gloo_pool, dtype="float64")
    tokens_BS, targets_BS = RandomTokens(32).batch(0, 0, range(2), SEQUENCE)
    logits = build_model(MODEL, torch.float64, seed=9)(tokens_BS)
    assert result.losses[0] == pytest.approx(
        F.cross_entropy(logits.flatten(0, 1), targets_BS.flatten()).item()
    )
    assert set(result.parameters) == {f"layers.{i}.down.lora_{x}.weight" for i in range(4) for x in "ab"}


def test_frozen_inputs_are_not_kept() -> None:
    """The input of a frozen matrix is not saved for a product that is not made."""
    layer = build_model(replace(MODEL, trained=("head.*",))).layers["0"].down
    saved: list[Tensor] = []
    x = torch.randn(3, layer.in_features, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = layer(x)
    assert not saved
    y.sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, -1))


def test_what_is_not_built_is_refused() -> None:
    with pytest.raises(ExecutionError, match="long skips"):
        training_of(Case("1f1b", 2, 2, model=LORA), layer_edges=parse_edges("0>2"))
    with pytest.raises(SpecError, match="an encoder-decoder with frozen parameters"):
        LORA.changed(num_encoder_layers=2)
