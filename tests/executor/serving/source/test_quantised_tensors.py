"""Quantised weights are served as the numbers that they mean: logits are those of transformers with these numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.executor.serving.paged_case import FAMILIES, their_logits, their_model, transformers
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt
from tests.serving.stored.packing import FORMATS, quantised

from meshwright.executor.models.weights.hugging_face import HuggingFaceSource
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.error import ExecutionError, SpecError

OPTIONS = RunnerOptions(dtype="float32", num_blocks=32, block_tokens=4, num_threads=1)
# Experts have products of their own, Gemma another source, biases are real ones here.
OTHERS = {"awq": "qwen3_moe", "fp8 blocks": "gemma3", "packed int4": "llama tied"}


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_numbers(name: str, tmp_path: Path) -> None:
    family = {**FAMILIES[OTHERS.get(name, "llama")]}
    if "moe_intermediate_size" in family:  # words hold whole outputs
        family["moe_intermediate_size"] = 16
    their_model(family, tmp_path / "made")
    packed, plain = quantised(tmp_path / "made", name, tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    tokens = prompt(23, 1)
    found = ScatteredBlocks(TorchRunner(open_served(packed), OPTIONS)).step(("a", tokens), all_rows=True)
    torch.testing.assert_close(torch.from_numpy(found), their_logits(reference, tokens), rtol=0, atol=2e-4)


def test_a_bias_that_adds_something_is_not_left_out(tmp_path: Path) -> None:
    """Quantisers write one for every product; a model that has none drops those of zeros, and no others."""
    from safetensors.torch import load_file, save_file

    their_model(FAMILIES["llama"], tmp_path / "made")
    packed, _ = quantised(tmp_path / "made", "gptq", tmp_path)
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.bias"
    assert name in tensors
    tensors[name] += 0.5
    (packed / "model.safetensors").unlink()  # it is mapped
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(ExecutionError, match=name):
        open_served(packed)


def test_they_are_not_trained(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path / "made")
    packed, _ = quantised(tmp_path / "made", "awq", tmp_path)
    with pytest.raises(SpecError, match="quantised by awq are served, not trained"):
        HuggingFaceSource(packed, open_served(packed).model)
