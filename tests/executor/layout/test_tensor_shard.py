"""Which rows and columns a device of a tensor-parallel group has: all devices together every element, whole heads each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.planned_case import MODELS
from torch import Tensor

from meshwright.executor.layout.flat_layout import Box, boxes
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


# Of a model of four layers, each a permutation of its own; the first has no experts.
SLOTS = ((), (2, 0, 3, 1), (1, 2, 3, 0), (3, 2, 1, 0))


@pytest.mark.parametrize("slots", [(), SLOTS], ids=["by number", "placed"])
@pytest.mark.parametrize("inner_degree", [2, 1], ids=["parts of experts", "whole experts"])
def test_devices_together_have_all_experts(inner_degree: int, slots: tuple[tuple[int, ...], ...]) -> None:
    """Four devices: two by tensor parallelism, and two, or all four, by experts; each has those of its slots, and whatever
    run of its elements is saved is where the whole tensor has it."""
    model, degree = MODELS["folded qwen moe"], 4 // inner_degree
    for name, value in build_model(model).global_parameters().items():
        if "expert_" not in name:
            continue
        whole, found = value.detach(), torch.zeros_like(value)
        for place in range(4):
            number, inner = divmod(place, inner_degree)
            shard = TensorShard(
                model, 2, place % 2, ExpertShard(degree, number, inner_degree, inner, slots=slots)
            )
            shard.check()
            local = shard.local(name, whole)
            assert local.numel() * 4 == whole.numel() and not shard.is_whole(name)
            assert shard.whole_shape(name, tuple(local.shape)) == tuple(whole.shape)
            if inner_degree == 1:
                order = slots[int(name.split(".")[1])] if slots else range(4)
                assert torch.equal(local[0], whole[order[place]]), name
            cut = local.numel() // 3  # within an expert
            for first, length in ((0, cut), (cut, local.numel() - cut)):
                for box in boxes(tuple(local.shape), first, length):
                    _put(shard, name, local, box, found)
        assert torch.equal(found, whole), name


def _put(shard: TensorShard, name: str, local: Tensor, box: Box, found: Tensor) -> None:
    """A box of what is here, where it belongs in the whole; nothing is there yet."""
    part = local[tuple(slice(at, at + n) for at, n in zip(box.offsets, box.sizes, strict=True))]
    for inside, offsets in shard.placed(name, tuple(found.shape), box):
        here = tuple(slice(at, at + n) for at, n in zip(inside.offsets, inside.sizes, strict=True))
        there = tuple(slice(at, at + n) for at, n in zip(offsets, inside.sizes, strict=True))
        assert not found[there].any(), name
        found[there] = part[here]


@pytest.mark.parametrize("near_degree", [1, 2])
def test_rows_are_sorted_by_the_slots_of_their_experts(near_degree: int) -> None:
    """The order of devices, or of neighbours first (0 and 2 are like the first of two, 1 and 3 like the second)."""
    shard = ExpertShard(4, 0, near_degree=near_degree, slots=SLOTS)
    places = shard.sent_places(1, 4)
    assert places is not None
    assert sorted(range(4), key=places.__getitem__) == ([2, 0, 3, 1] if near_degree == 1 else [2, 3, 0, 1])
    assert ExpertShard(4).sent_places(1, 4) is None


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
