"""What is served: folders of Hugging Face in the format that they say, checkpoints as they are, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.checkpoint.stored_case import whole
from tests.executor.serving.paged_case import FAMILIES, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt
from tests.planned_case import MODELS
from torch import Tensor

from meshwright.executor.checkpoint.checkpoint import RankCheckpoints
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.index import CheckpointInfo
from meshwright.executor.checkpoint.planner import RankFacts
from meshwright.executor.models.decoder import DecoderStage, build_model
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import check_served, open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.source import Source

MODEL = ModelSpec.decoder(2, 32, 4, num_kv_heads=2, vocabulary_size=61, max_sequence_length=64, name="small")
OPTIONS = RunnerOptions(num_blocks=32, block_tokens=4, num_threads=1)


def trained(model: ModelSpec) -> DecoderStage:
    """A model of ours, away from its first values; additions, too."""
    stage = build_model(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in stage.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return stage


def saved(folder: Path, model: ModelSpec, parameters: dict[str, Tensor]) -> Path:
    """A checkpoint as a training leaves it: of a part of the model only what trains."""
    told: dict[str, Any] = {
        "model": model.to_dict(),
        "seed": 0,
        "source": json.loads(json.dumps(asdict(Source()))),
    }
    checkpoints = RankCheckpoints(CheckpointConfig(Checkpoints(str(folder))), lambda: whole(parameters))
    checkpoints.save(CheckpointInfo(3, training=told), RankFacts())
    checkpoints.close()
    return folder


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_checkpoint_as_it_is(is_adapted: bool, tmp_path: Path) -> None:
    model = MODEL.changed(lora_rank=4, lora_targets=("qkv", "down")) if is_adapted else MODEL
    stage = trained(model)
    parameters = {name: p.detach() for name, p in stage.global_parameters().items() if p.requires_grad}
    assert len(parameters) == (8 if is_adapted else len(stage.global_parameters()))
    served = open_served(saved(tmp_path / "runs", model, parameters))
    assert served.dtype == "float32" and served.model.lora_rank == 0
    tokens = prompt(21, 1)
    with torch.no_grad():
        expected = stage(torch.tensor([tokens]))[0]
    found = ScatteredBlocks(TorchRunner(served, OPTIONS)).step(("a", tokens), all_rows=True)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["latent", "deepseek", "gpt oss"])
def test_what_was_trained_is_served(name: str, tmp_path: Path) -> None:
    """A checkpoint of experts with corrections, sinks and biases, and latents: the model that trains, in float64, in chunks
    beside decodes, where only a latent is kept of a token."""
    model = MODELS[name].changed(vocabulary_size=61, max_sequence_length=64)
    stage = trained(model).double()
    parameters = {name: p.detach() for name, p in stage.global_parameters().items()}
    for number, block in enumerate(stage.layers.values()):
        if block.mixture is not None and block.mixture.correction is not None:
            block.mixture.correction.copy_(torch.linspace(-0.3, 0.4, model.num_experts).roll(number))
            parameters[f"layers.{number}.mixture.correction"] = block.mixture.correction
    served = open_served(saved(tmp_path / "runs", model, parameters))
    blocks = ScatteredBlocks(TorchRunner(served, replace(OPTIONS, dtype="float64")))
    tokens, other = prompt(21, 1), prompt(9, 2)
    blocks.step(("a", tokens[:13]), ("b", other[:8]))
    found = blocks.step(("a", tokens[13:]), ("b", other[8:]))
    with torch.no_grad():
        expected = [stage(torch.tensor([each]))[0, -1] for each in (tokens, other)]
    # logits leave the runner in float32
    torch.testing.assert_close(torch.from_numpy(found).double(), torch.stack(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("stored", "served"), [("bfloat16", "bfloat16"), ("float16", "bfloat16"), ("float64", "float32")]
)
def test_the_format_is_that_of_the_folder(stored: str, served: str, tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("dtype", None)
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": stored}))
    assert open_served(tmp_path).dtype == served


def test_gemma_by_the_fields_of_its_first_files(tmp_path: Path) -> None:
    """Published folders say by old names what transformers now writes."""
    their_model(FAMILIES["gemma3"], tmp_path)
    new = open_served(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("rope_parameters", "layer_types"):
        config.pop(name)
    given = ("sliding_window_pattern", "rope_local_base_freq", "rope_theta", "rope_scaling")
    told = {**config, **{name: FAMILIES["gemma3"][name] for name in given}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    old = open_served(tmp_path)
    assert (old.traits, old.model.digest) == (new.traits, new.model.digest)
    assert (
        old.traits.window_theta == 300.0 and old.model.rope_theta == 5000.0 and old.traits.scored_dim == 24.0
    )
    (tmp_path / "config.json").write_text(
        json.dumps({**told, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    )
    with pytest.raises(SpecError, match="'yarn' rotary scaling"):
        open_served(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**told, "use_bidirectional_attention": True}))
    with pytest.raises(SpecError, match="use_bidirectional_attention"):
        open_served(tmp_path)


def test_what_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no checkpoint"):
        open_served(tmp_path)
    for changes, named in {"has_ladder_residual": "ladder", "final_logit_cap": "caps"}.items():
        with pytest.raises(ExecutionError, match=named):
            check_served(MODEL.changed(**{changes: True if named == "ladder" else 30.0}))


def test_routers_of_cosines_are_refused() -> None:
    """A variant that trains, whose parameters have names of ours alone."""
    model = MODELS["deepseek"]
    check_served(model)
    with pytest.raises(ExecutionError, match="has routers of cosines, which the torch engine does not serve"):
        check_served(model.changed(router_cosine_rank=3))
