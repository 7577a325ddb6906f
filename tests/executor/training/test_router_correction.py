"""Corrections of routers' choices: constants that come with the weights, work in training, and leave with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.planned_case import DEEPSEEK
from tests.training_case import Case, program_of, training_of

from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.export import export
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.weights.hugging_face import load_hugging_face, save_hugging_face
from meshwright.executor.training.training_job import RANDOM
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints

MODEL: ModelSpec = DEEPSEEK.changed(vocabulary_size=32, shared_intermediate_size=24)
NAMES = [f"layers.{layer}.mixture.correction" for layer in range(1, 4)]


def _write(folder: Path, correction: float) -> None:
    """A folder with weights by a seed, whose last expert is always or never chosen."""
    stage = build_model(MODEL, torch.float64, seed=9)
    tensors = {**stage.global_parameters(), **dict(stage.named_buffers())}
    for name in NAMES:
        tensors[name] = torch.zeros(6, dtype=torch.float64)
        tensors[name][-1] = correction
    save_hugging_face(MODEL, tensors, folder)


def _run(
    pool: Pool, folder: Path | None, checkpoints: CheckpointConfig | None = None, first: int = 0
) -> JobResult:
    model = MODEL if folder is None else load_hugging_face(folder)[0]
    case = Case("1f1b", 2, 2, model=model)
    source = replace(RANDOM, weights="" if folder is None else str(folder))
    training = training_of(case, source=source, first_step=first)
    return pool.run(Job.of(program_of(case), 1, training=training, dtype="float64", checkpoints=checkpoints))


def test_corrections_of_a_folder_are_used_and_leave_with_the_weights(gloo_pool: Pool, tmp_path: Path) -> None:
    losses = {}
    for correction in (10.0, -10.0):
        folder = tmp_path / f"first{correction}"
        _write(folder, correction)
        kept = CheckpointConfig(Checkpoints(str(tmp_path / f"runs{correction}"), every=1))
        result = _run(gloo_pool, folder, kept)
        losses[correction] = result.losses[0]
        # an expert that no token goes to has no gradient, and one that all go to has
        last_E = result.gradients[0]["layers.1.mixture.expert_down.weight"][-1]
        assert bool(last_E.abs().max() > 0) == (correction > 0)
        export(tmp_path / f"runs{correction}" / "step-1", tmp_path / f"out{correction}", "hugging_face")
        written = load_hugging_face(tmp_path / f"out{correction}", torch.float64)[1]
        assert all(written[name].tolist() == [0.0] * 5 + [correction] for name in NAMES)
    assert losses[10.0] != losses[-10.0]


def test_a_run_does_not_go_on_with_other_corrections(gloo_pool: Pool, tmp_path: Path) -> None:
    _write(tmp_path / "first", 10.0)
    _run(gloo_pool, tmp_path / "first", CheckpointConfig(Checkpoints(str(tmp_path / "runs"), every=1)))
    resumed = CheckpointConfig(
        Checkpoints(str(tmp_path / "wrong")), resume_from=str(tmp_path / "runs" / "step-1")
    )
    with pytest.raises(SpecError, match="routers' corrections") as caught:
        _run(gloo_pool, None, resumed, first=1)
    assert caught.value.next == f"train with --from {tmp_path / 'first'}"
