"""RunnerOptions: how a model is served with torch: formats, blocks, processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.executor.capability import EXECUTED_DTYPES
from meshwright.executor.serving.parallel.message_sum import BACKEND, check_executed
from meshwright.serving.weight.weight_place import NOTHING_FETCHED, FetchedBlocks
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec

BLOCK_TOKENS = 16
HOST_SHARE = (
    0.25  # of a CPU's free memory that blocks take where nobody says how many: weights and others want theirs
)
DEVICE_SHARE = 0.9  # of a device's memory behind the weights, the rest is for what a step computes with
MOST_SEQUENCES = 256  # of the longest length that blocks are made for where nobody says how many


@dataclass(frozen=True)
class RunnerOptions:
    """How a model is served with torch.

    Args:
        dtype: float32, bfloat16 or float64, of weights, computing and blocks; "": that of the model's files.
        device: "cpu", "cuda" or "cuda:N".
        block_tokens: tokens of a block of keys and values.
        num_blocks: blocks; 0: as many as the free memory's share holds.
        num_host_blocks: blocks in host memory to which others are swapped out; 0: none.
        max_model_tokens: the longest sequence; 0: the model's own limit.
        tp: ranks that share every layer.
        pp: ranks that have some of the layers each.
        ep: ranks, tp or a divisor of it, among which whole experts are divided; those that share one have parts of it.
        expert_slots: of every layer its experts by slot, device of ep after device (`ExpertPlacement.slots_in`, copies too);
            empty: neighbouring ones on each.
        num_threads: of each process; 0: as many as torch has.
        fetched: blocks of weights that come for every step in place of staying.
        sums: how the terms of tensor-parallel ranks are summed: by the processes' library ("backend"), or by messages as a
            "star", around a "ring", or in the "quickest" of both for each size, by what messages take here.
        link_latency_s: by which each message of a sum is delayed on purpose, to try slow links on one machine.
    """

    dtype: str = ""
    device: str = "cpu"
    block_tokens: int = BLOCK_TOKENS
    num_blocks: int = 0
    num_host_blocks: int = 0
    max_model_tokens: int = 0
    tp: int = 1
    pp: int = 1
    ep: int = 1
    expert_slots: tuple[tuple[int, ...], ...] = ()
    num_threads: int = 0
    fetched: FetchedBlocks = NOTHING_FETCHED
    sums: str = BACKEND
    link_latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.dtype and self.dtype not in EXECUTED_DTYPES:
            raise SpecError(f"dtype {self.dtype!r} is not served", allowed=", ".join(EXECUTED_DTYPES))
        check_executed(self.sums, self.device, self.link_latency_s)
        counts = {
            name: getattr(self, name)
            for name in ("num_blocks", "num_host_blocks", "max_model_tokens", "num_threads")
        }
        wrong = [f"{name}={value}" for name, value in counts.items() if value < 0]
        wrong += [
            f"{name}={getattr(self, name)}"
            for name in ("block_tokens", "tp", "pp", "ep")
            if getattr(self, name) < 1
        ]
        if wrong:
            raise SpecError(
                f"a runner with {', '.join(wrong)}", allowed="counts from 1; 0 where it has a meaning"
            )

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RunnerOptions:
        """From what `asdict` made, by way of JSON."""
        slots = tuple(map(tuple, data["expert_slots"]))
        return cls(**{**data, "fetched": FetchedBlocks.of(data["fetched"]), "expert_slots": slots})

    @property
    def torch_dtype(self) -> torch.dtype:
        """torch's, once `dtype` is known."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def num_ranks(self) -> int:
        """Processes that the model is divided over."""
        return self.tp * self.pp


def kept_heads(model: ModelSpec, tp: int) -> tuple[int, int]:
    """Of one token and layer on one of `tp` ranks: heads of keys, and the numbers of each. Of latent attention one, which all
    query heads share, so that every rank has it: the latent beside what turns."""
    attention, latent = model.attention, model.attention.latent
    if latent:
        return 1, latent.key_value_rank + latent.rotary_head_dim
    return attention.num_kv_heads // tp, attention.head_dim


def block_bytes(model: ModelSpec, options: RunnerOptions) -> int:
    """Keys and values, or latents, of one block on one rank, of the stage with the most layers."""
    num_layers, (num_heads, width) = -(-model.num_layers // options.pp), kept_heads(model, options.tp)
    num_kinds = 1 if model.attention.latent else 2
    numbers = num_layers * options.block_tokens * num_kinds * num_heads * width
    return numbers * options.torch_dtype.itemsize
