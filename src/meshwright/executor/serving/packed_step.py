"""PackedStep: the inputs of one step as a model's layers use them.

Shapes: T new tokens, R rows whose logits are asked for, D numbers of a head that turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.serving.engine.runner import StepInputs
from meshwright.specs.model.rotary_scaling import RotaryScaling

Rotary = tuple[float, RotaryScaling | None]  # the base of rotary frequencies, and how they are changed
TokensOfAdapter = tuple[int, Tensor | None]  # its number, and the rows of the step that it adds to; None: all


class Reads(Protocol):
    """What layers with one window read in a step."""

    def attend(
        self, query_TKGD: Tensor, keys: Tensor, values: Tensor, scale: float, sinks_KG: Tensor | None = None
    ) -> Tensor:
        """Attention over pages of keys and values [N, b, K, D]: [T, K * G * D]. `sinks_KG`: of every head a number that joins
        the softmax of its scores, and has no value."""


@dataclass(frozen=True)
class PackedStep:
    """``slots_T``: where new keys and values go (`KeyValueBlocks.write`). ``turns``: how positions turn, complex
    [T, 1, D / 2]. ``reads``: by window. ``adapters``: of sequences that have one.
    """

    tokens_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    rows_R: Tensor
    turns: Mapping[Rotary, Tensor]
    reads: Mapping[int, Reads]
    adapters: Sequence[TokensOfAdapter] = ()


def slots_of(inputs: StepInputs, block_tokens: int) -> NDArray[np.int64]:
    """Of every new token the slot of its key and value: block x `block_tokens` + place in the block, [T]."""
    counts = np.diff(inputs.query_starts)
    starts_T = np.repeat(inputs.block_starts[:-1].astype(np.int64), counts)
    before_T = np.repeat(inputs.past_lengths.astype(np.int64) - inputs.query_starts[:-1], counts)
    places_T = before_T + np.arange(len(before_T))
    blocks_T = inputs.block_ids[starts_T + places_T // block_tokens].astype(np.int64)
    slots_T: NDArray[np.int64] = blocks_T * block_tokens + places_T % block_tokens
    return slots_T


def adapter_tokens(inputs: StepInputs, device: torch.device) -> list[TokensOfAdapter]:
    """For every adapter of the step its tokens. Number 0 is the model's own weights, which add nothing."""
    if not any(inputs.adapters):
        return []
    of_tokens = np.repeat(np.asarray(inputs.adapters), np.diff(inputs.query_starts))
    found: list[TokensOfAdapter] = []
    for number in dict.fromkeys(inputs.adapters):
        is_its = of_tokens == number
        if number:
            rows = None if is_its.all() else torch.from_numpy(np.flatnonzero(is_its)).to(device)
            found.append((number, rows))
    return found
