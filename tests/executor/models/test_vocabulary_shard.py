"""A device's rows of both tables: the whole table's first values, lookups that add up, gradients of own rows only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.executor.models.decoder import build_model
from meshwright.executor.models.vocabulary_shard import VocabularyShard
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(2, 8, 2, vocabulary_size=10, max_sequence_length=4)


def shards(model: ModelSpec, num: int) -> list[VocabularyShard]:
    return [VocabularyShard(model, k, num, 0, torch.float64, torch.device("cpu")) for k in range(num)]


@pytest.mark.parametrize("num", [1, 3, 4])
def test_rows_are_those_of_the_whole_tables(num: int) -> None:
    whole = build_model(MODEL, torch.float64)
    assert whole.embedding is not None and whole.head is not None
    for name, table in (("embedding", whole.embedding.weight), ("head", whole.head.weight)):
        parts = [getattr(shard, name) for shard in shards(MODEL, num)]
        assert torch.equal(torch.cat(parts)[:10], table)
        assert not torch.cat(parts)[10:].any()


def test_lookups_add_up_and_gradients_go_to_their_rows() -> None:
    tokens_BS = torch.tensor([[0, 9, 3], [3, 5, 9]])
    own = shards(MODEL, 3)
    table_VE = torch.cat([shard.embedding for shard in own])
    parts = torch.stack([shard.lookup(tokens_BS) for shard in own])
    assert torch.equal(parts.sum(0), table_VE[tokens_BS])
    dy_BSE = torch.randn(2, 3, 8, dtype=torch.float64)
    wanted_VE = torch.zeros_like(table_VE).index_add(0, tokens_BS.flatten(), dy_BSE.flatten(0, 1))
    with torch.no_grad():
        for shard in own:
            shard.accumulate_lookup(tokens_BS, dy_BSE)
    found = [shard.embedding.grad for shard in own if shard.embedding.grad is not None]
    assert torch.allclose(torch.cat(found), wanted_VE, atol=1e-15)


def test_a_tied_head_is_the_embedding() -> None:
    shard = shards(replace(MODEL, has_tied_embeddings=True), 2)[1]
    assert shard.head is shard.embedding
    assert list(shard.global_parameters()) == ["embedding.weight"]
