"""Adapters: sequences of one step, each with its own, get the logits of models with the additions in their matrices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.executor.serving.adapter_case import targets_of, write_adapter
from tests.executor.serving.paged_case import FAMILIES, their_logits, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt

from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.error import ExecutionError

OPTIONS = RunnerOptions(dtype="float32", block_tokens=4, num_blocks=64, num_threads=1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "qwen3_moe", "deepseek_v2"])
def test_every_sequence_has_its_own(family: str, tmp_path: Path) -> None:
    """Two adapters and none, prompts beside decodes; one is dropped, and another comes."""
    theirs = their_model(FAMILIES[family], tmp_path / "model")
    models = {
        1: write_adapter(theirs, tmp_path / "one", targets_of(family), 3, 1),
        2: write_adapter(theirs, tmp_path / "two", targets_of(family)[1:3], 5, 2, use_rslora=True),
        0: theirs,
    }
    runner = TorchRunner(open_served(tmp_path / "model"), OPTIONS)
    assert [runner.load_adapter(tmp_path / name) for name in ("one", "two")] == [1, 2]
    blocks, tokens = ScatteredBlocks(runner), {number: prompt(9 + number, number) for number in models}
    blocks.step(*((str(number), tokens[number][:-1]) for number in (1, 2)), adapters=(1, 2))
    work: list[tuple[str, Sequence[int]]] = [("2", tokens[2][-1:]), ("0", tokens[0]), ("1", tokens[1][-1:])]
    found = blocks.step(*work, adapters=(2, 0, 1))
    expected = [their_logits(models[number], tokens[number])[-1] for number in (2, 0, 1)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert (expected[0] - their_logits(theirs, tokens[2])[-1]).abs().max() > 0.1  # it does add something
    runner.drop_adapter(1)
    assert runner.load_adapter(tmp_path / "one") == 3
    again = blocks.step(("3", tokens[1]), adapters=(3,))
    np.testing.assert_allclose(again[0], expected[2], rtol=0, atol=1e-4)
    with pytest.raises(ExecutionError, match="adapter 1 is not loaded; allowed: 0, 2, 3"):
        blocks.step(("1", [1]), adapters=(1,))


def changed(folder: Path, **config: Any) -> None:
    """Another configuration."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


def test_what_is_no_plain_addition_is_refused(tmp_path: Path) -> None:
    theirs = their_model(FAMILIES["llama"], tmp_path / "model")
    model = open_served(tmp_path / "model").model
    write_adapter(theirs, tmp_path / "adapter", ("q_proj", "down_proj"), 2, 1)
    folder, factors = tmp_path / "adapter", load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    AdapterFolder(folder, model)
    for field, value in {
        "use_dora": True,
        "modules_to_save": ["lm_head"],
        "peft_type": "IA3",
        "bias": "all",
    }.items():
        before = json.loads((folder / "adapter_config.json").read_text())
        changed(folder, **{field: value})
        with pytest.raises(ExecutionError, match=field):
            AdapterFolder(folder, model)
        (folder / "adapter_config.json").write_text(json.dumps(before))
    name = next(name for name in factors if name.endswith("q_proj.lora_B.weight"))
    wrong = {
        "adds to nothing": {**factors, "base_model.model.lm_head.lora_A.weight": torch.zeros(2, 32)},
        r"are \(2, 32\)": {key: value for key, value in factors.items() if key != name},
        r"\(32, r\)": {**factors, name: torch.zeros(31, 2)},
    }
    for said, tensors in wrong.items():
        save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(ExecutionError, match=said):
            AdapterFolder(folder, model)
    with pytest.raises(ExecutionError, match="is no adapter"):
        AdapterFolder(tmp_path / "model", model)
