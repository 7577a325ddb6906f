"""Weights that come for every step: logits are those of weights that stay, bit by bit, and no more than a window is there."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.executor.serving.adapter_case import targets_of, write_adapter
from tests.executor.serving.expert_slots import slots_of
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, NUM_BLOCKS, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt, served_work
from torch import Tensor

from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel, open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.executor.serving.weight.block_window import BlockWindow
from meshwright.executor.serving.weight.stage_weights import StageReader, StageWeights, num_held
from meshwright.serving.weight.expert_loads import ExpertLoads
from meshwright.serving.weight.fetched_step import window_bytes
from meshwright.serving.weight.weight_place import NOTHING_FETCHED, FetchedBlocks, stage_blocks
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

OPTIONS = RunnerOptions(
    dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_host_blocks=8, num_threads=1
)
SMALL = ModelSpec.decoder(1, 8, 2)


def all_fetched(served: ServedModel, window: int) -> RunnerOptions:
    """Every block comes from the files."""
    blocks = stage_blocks(range(served.model.num_layers), True, True)
    return replace(OPTIONS, fetched=FetchedBlocks(blocks, window, "disk"))


def bound_bytes(served: ServedModel, window: int, tp: int = 1, rank: int = 0) -> float:
    """The largest window of a rank, by what is read of each block."""
    shard = TensorShard(served.model, tp, rank)
    reader = StageReader(served, range(served.model.num_layers), shard, torch.float32, torch.device("cpu"))
    return window_bytes([reader.read((block,)).num_bytes for block in reader.blocks], window)


@pytest.mark.parametrize(
    "family",
    [
        "llama tied",
        "gemma3",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpt2", "deepseek_v3", "gpt_oss")),
    ],
)
@pytest.mark.parametrize("window", [2, 3])
def test_what_comes_computes_what_stays_would(family: str, window: int, tmp_path: Path) -> None:
    their_model(FAMILIES[family], tmp_path)
    served = open_served(tmp_path)
    stays, comes = TorchRunner(served, OPTIONS), TorchRunner(served, all_fetched(served, window))
    for found, expected in zip(served_work(comes), served_work(stays), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert 0 < comes.peak_weight_bytes[0] <= bound_bytes(served, window) < stays.peak_weight_bytes[0]
    comes.close()


def test_two_ranks_on_a_slow_link_hold_their_windows_in_every_step(tmp_path: Path) -> None:
    """A rank's own part of each block; the peak is asked behind each of many steps. Sums are a star over messages that are
    late."""
    their_model({**FAMILIES["llama"], "num_hidden_layers": 5}, tmp_path)
    served = open_served(tmp_path)
    comes = ParallelRunner(served, replace(all_fetched(served, 2), tp=2, sums="star", link_latency_s=0.001))
    bounds = [bound_bytes(served, 2, 2, rank) for rank in range(2)]
    ours, theirs = ScatteredBlocks(comes), ScatteredBlocks(TorchRunner(served, OPTIONS))
    for step in range(6):
        work = ("a", prompt(9 if step == 0 else 1, step))
        np.testing.assert_allclose(ours.step(work), theirs.step(work), rtol=0, atol=2e-5)
        assert all(0 < peak <= bound for peak, bound in zip(comes.peak_weight_bytes, bounds, strict=True))
    comes.close()


@pytest.mark.slow
def test_whole_experts_come_for_every_step_as_they_would_stay(tmp_path: Path) -> None:
    """Those of a placement with a copy on each of two ranks; rows are counted through all steps."""
    their_model(FAMILIES["mixtral"], tmp_path)
    served = open_served(tmp_path)
    slots = slots_of(served.model, 2, 2)
    divided = replace(all_fetched(served, 2), tp=2, ep=2, expert_slots=slots)
    comes, one = ParallelRunner(served, divided), TorchRunner(served, OPTIONS)
    for found, expected in zip(served_work(comes), served_work(one), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    ours, theirs = (ExpertLoads.of(runner.slot_rows()) for runner in (comes, one))
    assert ours is not None and theirs is not None and ours.by_expert == theirs.by_expert
    assert [len(rows) for rows in ours.by_device] == [2, 2] and ours.num_rows == theirs.num_rows > 0
    comes.close()


def test_no_tensor_outlives_its_use() -> None:
    """Whenever a block is read, those that are alive are fewer than the window."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    seen: list[int] = []

    def read(block: str) -> StageWeights:
        seen.append(len(alive))
        made = torch.ones(4)
        alive.add(made)
        return StageWeights(SMALL, {f"{block}.weight": made})

    order = ("a", "b", "c")
    window = BlockWindow(read, order, 2)
    for _ in range(4):
        for block in order:
            assert window.use(block, lambda weights, name=block: weights.tensor(name) * 2).sum() == 8
    window.close()
    assert len(seen) >= 12 and max(seen) == 1, "one block computes while another one comes"
    assert window.peak_bytes == 2 * 16


def test_memory_for_pages_is_what_windows_leave(tmp_path: Path) -> None:
    """Of 1,952 numbers of the embedding, 3,104 of an attention and 1,984 of the head the largest two are there at once."""
    their_model(FAMILIES["llama"], tmp_path)
    served = open_served(tmp_path)
    assert num_held(served, NOTHING_FETCHED) == served.model.num_parameters
    ends = FetchedBlocks(("embedding", "layers.0.attention", "head"), 2, "disk")
    assert num_held(served, ends) == served.model.num_parameters - 61 * 32
    assert num_held(served, replace(ends, window=5)) == served.model.num_parameters


def test_what_goes_wrong_ends_the_window() -> None:
    def read(block: str) -> StageWeights:
        if block == "b":
            raise OSError("the disk is gone")
        return StageWeights(SMALL, {f"{block}.weight": torch.ones(1)})

    window = BlockWindow(read, ("a", "b"), 2)
    window.use("a", lambda weights: weights.tensor("a"))
    with pytest.raises(ExecutionError, match="block b .* the disk is gone"):
        window.use("b", lambda weights: weights.tensor("b"))
    with pytest.raises(ExecutionError, match="closed"):
        window.use("a", lambda weights: weights.tensor("a"))


def test_what_cannot_come_is_refused(tmp_path: Path) -> None:
    """An adapter adds to matrices that stay; files are all that there is to fetch from."""
    write_adapter(their_model(FAMILIES["llama"], tmp_path), tmp_path / "adapter", targets_of("llama"), 3, 1)
    served = open_served(tmp_path)
    options = all_fetched(served, 2)
    runner = TorchRunner(served, options)
    with pytest.raises(ExecutionError, match="weights that stay"):
        runner.load_adapter(tmp_path / "adapter")
    runner.close()
    with pytest.raises(ExecutionError, match="'moon'"):
        TorchRunner(served, replace(options, fetched=replace(options.fetched, source="moon")))
