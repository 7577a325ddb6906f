"""Trees of the transformers library get rules: pairs of columns and rows, nothing large whole; cuts keep their sections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from meshwright.executor.layout.rule_shard import cut
from meshwright.executor.models.cut.module_tree import module_tree
from meshwright.specs.training.tensor_rule import TensorRule
from meshwright.systems.planning.redco.mechanism import (
    LEAST_BYTES,
    tensor_rules,
    units_of,
    whole_bytes,
)

pytest.importorskip("torch")
pytest.importorskip("transformers")

CONFIGS: dict[str, dict[str, Any]] = {
    "GPT2Config": {"n_layer": 1},
    "LlamaConfig": {"num_hidden_layers": 1},
    "OPTConfig": {"num_hidden_layers": 1},
    "T5Config": {"num_layers": 1},
    "BertConfig": {"num_hidden_layers": 1, "is_decoder": True},
    "GPTNeoXConfig": {"num_hidden_layers": 1},
    "Qwen2Config": {"num_hidden_layers": 1},
    "Phi3Config": {"num_hidden_layers": 1},
    "BloomConfig": {"n_layer": 1},
    "GPTJConfig": {"n_layer": 1},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_public_trees_are_cut(name: str) -> None:
    config = getattr(transformers, name)(**CONFIGS[name])
    kind = transformers.AutoModelForSeq2SeqLM if name == "T5Config" else transformers.AutoModelForCausalLM
    build: Any = kind.from_config
    with torch.device("meta"):
        tree = module_tree(build(config))
    rules = tensor_rules(tree, 2)
    assert whole_bytes(tree, rules, LEAST_BYTES) == []
    units = [[rules[one.name].cut for one in unit] for unit in units_of(tree) if len(unit) > 1]
    # attention and feed-forward; an encoder, a decoder and attention between them
    assert len(units) == (5 if name == "T5Config" else 2)
    assert all(set(unit[:-1]) == {"column"} and unit[-1] == "row" for unit in units)


def test_cuts_take_a_part_of_every_section() -> None:
    weight = torch.arange(12.0).view(6, 2)
    rule = TensorRule("w", "column", 0, sections=(4, 2))
    parts = [cut(weight, rule, rank, 2)[:, 0].tolist() for rank in range(2)]
    assert parts == [[0.0, 2.0, 8.0], [4.0, 6.0, 10.0]]


def test_padding_is_zeros_at_the_end() -> None:
    weight = torch.ones(3, 2)
    rule = TensorRule("t", "table", 0, rows=4)
    assert cut(weight, rule, 1, 2).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    reversed_rule = TensorRule("h", "gathered", 1, rows=4)
    assert cut(weight.T, reversed_rule, 1, 2).tolist() == [[1.0, 0.0], [1.0, 0.0]]
