"""Experts that come when a step asks for them: logits are those of an engine that has all, and no more than the places are
ever here."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, NUM_BLOCKS, their_model
from tests.executor.serving.scattered_blocks import served_work

from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.executor.serving.weight.expert_places import ExpertPlaces, ExpertWeights
from meshwright.executor.serving.weight.stage_weights import num_held
from meshwright.serving.weight.expert_place import Expert, Swap
from meshwright.serving.weight.weight_place import NOTHING_FETCHED
from meshwright.specs.error import ExecutionError

OPTIONS = RunnerOptions(
    dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_host_blocks=8, num_threads=1
)


class FirstIn:
    """A cache: who came first goes; behind a layer the last expert's neighbour comes."""

    def __init__(self, num_slots: int, num_experts: int) -> None:
        self.num_slots, self.num_experts, self.here = num_slots, num_experts, deque[Expert]()
        self.swaps: list[Swap] = []
        self.num_uses = 0

    def begin(self, layer: int, experts_TK: np.ndarray) -> None:
        self.expected = (layer, int(experts_TK.max() + 1) % self.num_experts)

    def use(self, expert: Expert) -> Swap | None:
        self.num_uses += 1
        return None if expert in self.here else self._come(expert)

    def ahead(self) -> Sequence[Swap]:
        return [] if self.expected in self.here else [self._come(self.expected)]

    def _come(self, expert: Expert) -> Swap:
        goes = self.here.popleft() if len(self.here) == self.num_slots else None
        self.here.append(expert)
        self.swaps.append(Swap(expert, goes))
        return self.swaps[-1]


@pytest.mark.parametrize(
    "family",
    [
        "mixtral",
        "qwen2_moe",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("qwen3_moe", "deepseek_v3")),
    ],
)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_experts_that_come_compute_what_those_that_stay_would(
    family: str, num_slots: int, tmp_path: Path
) -> None:
    their_model(FAMILIES[family], tmp_path)
    served = open_served(tmp_path)
    cache = FirstIn(num_slots, served.model.num_experts)
    stays, comes = TorchRunner(served, OPTIONS), TorchRunner(served, OPTIONS, cache)
    for found, expected in zip(served_work(comes), served_work(stays), strict=True):
        np.testing.assert_array_equal(found, expected)
    counts = comes.expert_counts
    assert counts.hits + counts.misses == cache.num_uses
    assert counts.misses + counts.came_ahead == len(cache.swaps) > num_slots
    assert (
        comes.peak_weight_bytes[0]
        == 4 * num_held(served, NOTHING_FETCHED, num_slots)
        < stays.peak_weight_bytes[0]
    )
    assert stays.expert_counts is None
    comes.close()


def test_no_expert_outlives_its_place() -> None:
    """Whenever one is read, those that are alive are fewer than the places; every row goes through its own expert."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    seen: list[int] = []

    def read(expert: Expert) -> ExpertWeights:
        seen.append(len(alive))
        gate_up, down = torch.full((4, 2), 1.0 + expert[1]), torch.full((2, 2), 1.0 + expert[1])
        alive.add(gate_up)
        return ExpertWeights(gate_up, down)

    with torch.inference_mode():
        places, experts_TK = ExpertPlaces(FirstIn(2, 4), read), torch.tensor([[0], [2], [3]])
        rows_NE, counts_X = torch.ones(3, 2), torch.tensor([1, 0, 1, 1])
        for layer in range(3):
            found = places.through(layer, rows_NE, counts_X, experts_TK)
            inner = torch.tensor([2.0, 6.0, 8.0])  # (1 + expert) x 2 ones
            expected = torch.nn.functional.silu(inner) * inner * torch.tensor([2.0, 6.0, 8.0])
            torch.testing.assert_close(found[:, 0], expected)
    places.close()
    num_asked = places.counts.misses + places.counts.came_ahead
    assert num_asked - 1 <= len(seen) <= num_asked and max(seen) <= 1  # the last ahead may go before it came
    assert places.counts.peak_bytes == 2 * 48


class Told(FirstIn):
    """Says what it is told to say."""

    def __init__(self, swap: Swap | None) -> None:
        super().__init__(1, 4)
        self.told = swap

    def use(self, expert: Expert) -> Swap | None:
        return self.told


def test_what_goes_wrong_is_said() -> None:
    def through(cache: FirstIn) -> None:
        def read(expert: Expert) -> ExpertWeights:
            raise OSError("the disk is gone")

        places = ExpertPlaces(cache, read)
        try:
            places.through(0, torch.ones(1, 2), torch.tensor([1]), torch.tensor([[0]]))
        finally:
            places.close()

    with pytest.raises(ExecutionError, match=r"\(0, 0\).*the disk is gone"):
        through(FirstIn(1, 4))
    with pytest.raises(ExecutionError, match="never came"):
        through(Told(None))
    with pytest.raises(ExecutionError, match="never came"):
        through(Told(Swap((0, 0), (0, 1))))


def test_who_has_no_experts_fetches_none(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    with pytest.raises(ExecutionError, match="has none"):
        TorchRunner(open_served(tmp_path), OPTIONS, FirstIn(2, 4))


def test_experts_with_biases_stay(tmp_path: Path) -> None:
    their_model(FAMILIES["gpt_oss"], tmp_path)
    with pytest.raises(ExecutionError, match="have biases"):
        TorchRunner(open_served(tmp_path), OPTIONS, FirstIn(2, 6))
