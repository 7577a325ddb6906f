"""Tiny models of transformers with random weights, and sequences whose blocks lie scattered; what tests of runners share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.serving.engine.runner import Runner, StepInputs

transformers = pytest.importorskip("transformers")

VOCABULARY, BLOCK_TOKENS, NUM_BLOCKS = 61, 4, 96
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT2},
    "llama": {"model_type": "llama", **SIZES, "rope_scaling": LLAMA3, "rope_theta": 500.0},
    "llama tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 7, "head_dim": 16},
    "qwen2": {
        "model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text", **SIZES, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 7,
        "sliding_window_pattern": 3, "query_pre_attn_scalar": 24, "rope_local_base_freq": 300.0, "rope_theta": 5000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "model_type": "qwen2_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "head_dim": 16, "norm_topk_prob": True,
    },
}  # fmt: skip


def their_model(config: dict[str, Any], folder: Path, seed: int = 5) -> Any:
    """A model of transformers with every parameter away from zero and one, also as a folder."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    model = transformers.AutoModelForCausalLM.from_config(made).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return model


def their_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """Of all positions of one sequence: [S, V]."""
    with torch.no_grad():
        found: Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return found


def prompt(length: int, seed: int) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


class ScatteredBlocks:
    """Sequences of a runner, whose blocks lie anywhere. ``tables``: blocks by name, ``lengths``: tokens in them."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.free = np.random.default_rng(seed).permutation(runner.num_blocks).tolist()
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(
        self, *work: tuple[str, Sequence[int]], all_rows: bool = False, adapters: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """New tokens of some sequences in one step; logits of the last row of each, or of all."""
        inputs = self.inputs(work, all_rows, adapters)
        for name, tokens in work:
            self.lengths[name] += len(tokens)
        return self.runner.forward(inputs).copy()

    def inputs(
        self, work: Sequence[tuple[str, Sequence[int]]], all_rows: bool = False, adapters: Sequence[int] = ()
    ) -> StepInputs:
        """What the step is given; blocks are taken as they are needed."""
        pasts = [self.lengths.setdefault(name, 0) for name, _ in work]
        counts = [len(tokens) for _, tokens in work]
        for (name, _), past, count in zip(work, pasts, counts, strict=True):
            table = self.tables.setdefault(name, [])
            while len(table) * self.runner.block_tokens < past + count:
                table.append(self.free.pop())
        held = [self.tables[name] for name, _ in work]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return StepInputs(
            token_ids=np.array([t for _, tokens in work for t in tokens], np.int64),
            positions=np.concatenate([np.arange(p, p + c) for p, c in zip(pasts, counts, strict=True)]).astype(np.int64),
            query_starts=starts,
            past_lengths=np.array(pasts, np.int32),
            block_ids=np.array([block for table in held for block in table], np.int32),
            block_starts=np.concatenate([[0], np.cumsum([len(table) for table in held])]).astype(np.int32),
            max_context=max(p + c for p, c in zip(pasts, counts, strict=True)),
            rows=np.arange(starts[-1]) if all_rows else (starts[1:] - 1).astype(np.int64),
            adapters=adapters,
        )  # fmt: skip

    def fork(self, name: str, other: str) -> None:
        """`other` goes on where `name` is: full blocks are shared, a partly filled one is copied."""
        table, length = list(self.tables[name]), self.lengths[name]
        if length % self.runner.block_tokens:
            copied = self.free.pop()
            self.runner.move_blocks((), [(table[-1], copied)], ())
            table[-1] = copied
        self.tables[other], self.lengths[other] = table, length


def greedy(blocks: ScatteredBlocks, prompts: dict[str, list[int]], num_tokens: int) -> dict[str, list[int]]:
    """All prompts in one step, then decodes of all together."""
    logits = blocks.step(*prompts.items())
    found: dict[str, list[int]] = {name: [] for name in prompts}
    for _ in range(num_tokens):
        last = dict(zip(prompts, logits.argmax(1).tolist(), strict=True))
        for name, token in last.items():
            found[name].append(token)
        logits = blocks.step(*((name, [token]) for name, token in last.items()))
    return found
