"""Which rows and columns a device of a tensor-parallel group has: all devices together every element, whole heads each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.planned_case import MODELS

from meshwright.executor.layout.flat_layout import Box
from meshwright.executor.layout.tensor_shard import ExpertShard, TensorShard
from meshwright.executor.models.decoder import build_model
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec

ODD = replace(MODELS["qwen"], vocabulary_size=33)


@pytest.mark.parametrize("model", [*MODELS.values(), ODD], ids=[*MODELS, "odd"])
def test_devices_together_have_everything(model: ModelSpec) -> None:
    for name, value in build_model(model).global_parameters().items():
        whole, found = value.detach(), torch.zeros_like(value)
        for number in range(2):
            shard = TensorShard(model, 2, number)
            local = shard.local(name, whole)
            assert shard.whole_shape(name, tuple(local.shape)) == tuple(whole.shape)
            box = Box(tuple(0 for _ in local.shape), tuple(local.shape))
            for inside, offsets in shard.placed(name, tuple(whole.shape), box):
                here = tuple(slice(at, at + n) for at, n in zip(inside.offsets, inside.sizes, strict=True))
                there = tuple(slice(at, at + n) for at, n in zip(offsets, inside.sizes, strict=True))
                if not shard.is_whole(name):
                    assert not found[there].any(), name
                found[there] = local[here]
        assert torch.equal(found, whole), name


@pytest.mark.parametrize("divides_inner", [True, False], ids=["parts of experts", "whole experts"])
def test_devices_together_have_all_experts(divides_inner: bool) -> None:
    """Four devices: two by tensor parallelism, and two, or all four, by experts."""
    model = MODELS["qwen moe of 4"]
    for name, value in build_model(model).global_parameters().items():
        if "expert_" not in name:
            continue
        whole, found = value.detach(), torch.zeros_like(value)
        for place in range(4):
            experts = ExpertShard(4, place)
            if divides_inner:
                experts = ExpertShard(2, place // 2, inner_degree=2, inner_number=place % 2)
            shard = TensorShard(model, 2, place % 2, experts)
            shard.check()
            local = shard.local(name, whole)
            assert local.numel() * 4 == whole.numel() and not shard.is_whole(name)
            assert shard.whole_shape(name, tuple(local.shape)) == tuple(whole.shape)
            box = Box(tuple(0 for _ in local.shape), tuple(local.shape))
            for inside, offsets in shard.placed(name, tuple(whole.shape), box):
                here = tuple(slice(at, at + n) for at, n in zip(inside.offsets, inside.sizes, strict=True))
                there = tuple(slice(at, at + n) for at, n in zip(offsets, inside.sizes, strict=True))
                assert not found[there].any(), name
                found[there] = local[here]
        assert torch.equal(found, whole), name


def test_a_device_has_whole_heads() -> None:
    model = MODELS["llama"]  # four query heads of 8, two of keys and values
    weight = torch.arange(model.attention.qkv_size).repeat(3, 1).t()
    rows = TensorShard(model, 2, 1).local("layers.0.qkv.weight", weight)[:, 0].tolist()
    assert rows == [*range(16, 32), *range(40, 48), *range(56, 64)]


def test_a_table_has_as_many_rows_everywhere() -> None:
    table = torch.ones(33, 2)
    shards = [TensorShard(ODD, 2, number).local("embedding.weight", table) for number in range(2)]
    assert [tuple(shard.shape) for shard in shards] == [(17, 2), (17, 2)]
    assert shards[1].sum() == 32  # the last row is padding


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError, match="tp=4 does not divide the 2 key-value heads"):
        TensorShard(MODELS["llama"], 4).check()


def test_what_is_here_does_not_keep_the_whole_alive() -> None:
    """Rows of a matrix that lie one behind the other would, as a view, hold the memory of all of it."""
    model = ModelSpec.gpt(1, 8, 2, vocabulary_size=8, max_sequence_length=8, name="gpt", source="tests")
    whole = torch.zeros(4 * 8, 8)
    part = TensorShard(model, 2, 0).local("layers.0.gate_up.weight", whole)
    assert part.shape == (2 * 8, 8) and part.untyped_storage().nbytes() == part.nbytes
