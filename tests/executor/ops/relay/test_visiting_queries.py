"""States of attention merge in any order, whatever the cuts, rows without keys among them; messages keep sums bit by bit."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.executor.ops.attention.part_attention import AttentionState
from meshwright.executor.ops.attention.tile_kernel import EMPTY_SUM
from meshwright.executor.ops.relay.visiting_queries import (
    merge_packed,
    packed_rows,
    packed_state,
    rows_of,
    wide_numbers,
)

B, S, H, D = 2, 5, 3, 4


def state_of(scores_BHsm: torch.Tensor, values_BHmD: torch.Tensor) -> AttentionState:
    """Of some keys; -inf: a key is not seen."""
    sums = torch.logsumexp(scores_BHsm, -1).clamp(min=EMPTY_SUM)
    p = torch.exp(scores_BHsm - sums[..., None])
    return AttentionState((p @ values_BHmD).transpose(1, 2).contiguous(), sums.contiguous())


@given(
    cuts=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    scale=st.sampled_from([1.0, 100.0, 1e4]),
    masked=st.sampled_from([0.0, 0.5, 0.95]),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_any_order_of_any_cuts_is_the_softmax_over_all_keys(
    cuts: list[int], scale: float, masked: float, seed: int, dtype: torch.dtype
) -> None:
    generator, order = torch.Generator().manual_seed(seed), list(range(len(cuts)))
    scores = scale * torch.randn(B, H, S, sum(cuts), generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < masked, -torch.inf)
    scores[:, :, 0] = -torch.inf  # a row that sees nothing at all
    values = torch.randn(B, H, sum(cuts), D, generator=generator, dtype=torch.float64)
    pieces = [
        state_of(x.to(dtype), v.to(dtype))
        for x, v in zip(scores.split(cuts, -1), values.split(cuts, -2), strict=True)
    ]
    random.Random(seed).shuffle(order)
    first, *rest = (pieces[place] for place in order)
    for each in rest:
        merge_packed(first, packed_state(each, dtype))
    expected = state_of(scores.to(dtype).double(), values)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    # a logarithm of a sum is as large as scores are, and its last bit as much of every weight
    tolerance = max(tolerance, 10 * scale * torch.finfo(dtype).eps)
    torch.testing.assert_close(first.output_BsHD.double(), expected.output_BsHD, rtol=0, atol=tolerance)
    seen = expected.sums_BHs > EMPTY_SUM / 2
    torch.testing.assert_close(
        first.sums_BHs.double()[seen], expected.sums_BHs[seen], rtol=tolerance, atol=tolerance
    )
    assert bool((first.sums_BHs[~seen] <= EMPTY_SUM / 2).all()) and not bool(first.output_BsHD[:, 0].any())


@given(dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]), seed=st.integers(0, 100))
def test_messages_keep_sums_bit_by_bit(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sums = torch.randn(B, H, S, generator=generator, dtype=wide)
    query, output, gradient = (torch.randn(B, S, H, D, generator=generator).to(dtype) for _ in range(3))
    packed = packed_rows(query, output.flatten(2), sums, gradient.flatten(2))
    assert packed.shape == (B, S, H, 2 * D + 2 * wide_numbers(dtype)) and packed.dtype == dtype
    found = rows_of(packed, D)
    assert torch.equal(found.sums, sums) and torch.equal(found.query, query)
    assert torch.equal(found.output_gradient, gradient)
    products = (output.to(wide) * gradient.to(wide)).sum(-1).transpose(1, 2)
    torch.testing.assert_close(found.products, products, rtol=1e-6, atol=1e-6)
