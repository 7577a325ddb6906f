"""Training that begins at a Hugging Face folder: gradients, parameters and exported logits are those of transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training_case import SEQUENCE, SGD, Case, largest_difference, program_of, training_of
from torch import Tensor

from meshwright.executor import run_training
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.weights.hugging_face import open_hugging_face, save_hugging_face
from meshwright.executor.models.weights.parameter_map import NameMap
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.lowering.transfer.stage_edge import LayerEdge
from meshwright.schedules import registered
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.config.source import load_model
from meshwright.specs.error import ExecutionError

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-6  # transformers computes norms and rotary angles in float32 whatever the model is in
ITERATIONS = 2
CONFIG: dict[str, Any] = {
    "vocab_size": 38, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": True,
    "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2,
}  # fmt: skip


def _folder(path: Path) -> Any:
    """A Qwen 2 with windows, tied, in float64, and its folder."""
    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model("qwen2", **CONFIG)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    model.save_pretrained(path)
    return model


def _in_transformers(model: Any, global_batch: int) -> tuple[list[float], list[dict[str, Tensor]]]:
    """Losses and gradients of SGD on the same tokens."""
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD.learning_rate)
    losses, gradients = [], []
    for step in range(ITERATIONS):
        tokens_BS, targets_BS = RandomTokens(CONFIG["vocab_size"]).batch(
            0, step, range(global_batch), SEQUENCE
        )
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens_BS).logits.flatten(0, 1), targets_BS.flatten())
        loss.backward()
        losses.append(loss.item())
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
    return losses, gradients


@pytest.mark.parametrize("case", [Case("1f1b", 2, 2, num_replicas=2), Case("zb_h1", 2, 2)], ids=str)
def test_training_continues_a_folder(case: Case, gloo_pool: Pool, tmp_path: Path) -> None:
    theirs = _folder(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    case = replace(case, model=model)
    training = training_of(case, source=replace(RANDOM, weights=str(tmp_path / "theirs")))
    result = run_training(program_of(case), training, ITERATIONS, pool=gloo_pool, dtype="float64")
    losses, gradients = _in_transformers(theirs, case.global_batch)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)
    names = NameMap(model)
    for ours, expected in zip(result.gradients, gradients, strict=True):
        found = {n: x for name, value in ours.items() for n, x in names.to_theirs(name, value).items()}
        assert largest_difference(found, expected) < TOLERANCE
    save_hugging_face(model, result.parameters, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert again.dtype == torch.float64
    for parameter, expected in zip(again.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "choices",
    [
        {"pp": 2, "vocabulary": "one_barrier"},
        {"tp": 2, "pp": 2, "sequence_parallel": True},
        {"dp": 2, "sharding": "zero3"},
    ],
    ids=str,
)
def test_divided_tensors_begin_at_the_folder(
    choices: dict[str, Any], gloo_pool: Pool, tmp_path: Path
) -> None:
    theirs = _folder(tmp_path)
    model = load_model(tmp_path)
    num_devices = math.prod(choices.get(axis, 1) for axis in ("pp", "tp", "dp"))
    plan = Plan.of(
        model,
        Cluster(f"{num_devices}xcpu"),
        Workload(4, SEQUENCE),
        **{"dtype": "float64", "dp": 1, **choices},
    )
    training = TrainingConfig(
        model,
        plan.layers_per_stage,
        SEQUENCE,
        SGD,
        source=replace(RANDOM, weights=str(tmp_path)),
        layout=TensorLayout.of(plan),
    )
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    losses, _ = _in_transformers(theirs, 4)
    assert result.losses == pytest.approx(losses, rel=TOLERANCE)


def test_the_job_file_names_the_folder(tmp_path: Path) -> None:
    _folder(tmp_path / "theirs")
    case = Case("1f1b", 2, 2, model=load_model(tmp_path / "theirs"))
    training = training_of(case, source=replace(RANDOM, weights=str(tmp_path / "theirs")))
    job = Job.of(program_of(case), 1, training=training)
    job.write(tmp_path)
    again = Job.read(tmp_path, 0).training
    assert again == training and again.source.weights == str(tmp_path / "theirs")
    with pytest.raises(ExecutionError, match="long skips"):
        replace(training, layer_edges=(LayerEdge(0, 3),))


def test_another_model_than_the_folder_s_is_refused(gloo_pool: Pool, tmp_path: Path) -> None:
    _folder(tmp_path)
    model, _ = open_hugging_face(tmp_path)
    case = Case("1f1b", 2, 2, model=replace(model, rope_theta=5.0))
    with pytest.raises(ExecutionError, match="rope_theta 10000.0 there, 5.0 here"):
        run_training(
            program_of(case),
            training_of(case, source=replace(RANDOM, weights=str(tmp_path))),
            1,
            pool=gloo_pool,
        )
