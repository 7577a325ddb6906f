"""Attention with sinks over pages: of every head one more number in each softmax, which has no value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwright.executor.serving.page import paged_attention
from meshwright.executor.serving.page.paged_attention import paged_reads
from meshwright.serving.engine.runner import StepInputs

HEADS, GROUP, WIDTH, BLOCK_TOKENS, SCALE = 2, 3, 4, 4, 0.4


def inputs_of(past: list[int], new: list[int]) -> StepInputs:
    """Sequences with so many tokens before and new ones, whose blocks stand one behind the other."""
    counts, tokens = np.array(new), sum(new)
    starts = np.concatenate(([0], np.cumsum(-(-(np.array(past) + counts) // BLOCK_TOKENS)))).astype(np.int32)
    return StepInputs(
        token_ids=np.zeros(tokens, np.int64), positions=np.zeros(tokens, np.int64),
        query_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        past_lengths=np.array(past, np.int32), block_ids=np.arange(starts[-1], dtype=np.int32)[::-1].copy(),
        block_starts=starts, max_context=int(max(np.array(past) + counts)), rows=np.arange(tokens),
    )  # fmt: skip


def expected_of(
    inputs: StepInputs, query_TKGD: Tensor, keys: Tensor, values: Tensor, sinks_KG: Tensor, window: int
) -> Tensor:
    """Query by query and head by head: exponentials over their sum and that of the sink."""
    out = torch.zeros_like(query_TKGD)
    for sequence, past in enumerate(inputs.past_lengths.tolist()):
        first, last = inputs.query_starts[sequence : sequence + 2].tolist()
        begin, end = inputs.block_starts[sequence : sequence + 2].tolist()
        own = torch.from_numpy(inputs.block_ids[begin:end].astype(np.int64))
        key, value = (pages[own].flatten(0, 1) for pages in (keys, values))
        for place, row in enumerate(range(first, last), past):
            seen = slice(max(0, place - window + 1) if window else 0, place + 1)
            for k in range(HEADS):
                for g in range(GROUP):
                    weights = torch.exp(SCALE * key[seen, k] @ query_TKGD[row, k, g])
                    total = weights.sum() + torch.exp(sinks_KG[k, g])
                    out[row, k, g] = weights @ value[seen, k] / total
    return out.flatten(1)


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("tile", [5, 256])
def test_sinks_join_every_softmax(window: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes of several lengths, a prompt, and a chunk behind others, in tiles or whole."""
    monkeypatch.setattr(paged_attention, "TILE_TOKENS", tile)
    inputs = inputs_of([6, 0, 11, 7, 2], [1, 9, 1, 6, 1])
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    keys, values = (drawn(len(inputs.block_ids), BLOCK_TOKENS, HEADS, WIDTH) for _ in range(2))
    query_TKGD, sinks_KG = drawn(len(inputs.rows), HEADS, GROUP, WIDTH), 2 * drawn(HEADS, GROUP)
    reads = paged_reads(inputs, window, BLOCK_TOKENS, torch.float64, torch.device("cpu"))
    found = reads.attend(query_TKGD, keys, values, SCALE, sinks_KG)
    expected = expected_of(inputs, query_TKGD, keys, values, sinks_KG, window)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (reads.attend(query_TKGD, keys, values, SCALE) - found).abs().max() > 0.1
