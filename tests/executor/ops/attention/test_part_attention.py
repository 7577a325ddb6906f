"""Attention of a rank's tokens, block by block, is that of the whole sequence: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.executor import context_parallel as cp
from torch import Tensor

from meshwright.executor.ops.attention.causal_attention import HeadLayout, causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention, query_and_block
from meshwright.executor.ops.attention.rotary import Rotation, rotation, turned_at
from meshwright.executor.ops.attention.tile_kernel import EMPTY_SUM
from meshwright.executor.ops.token_places import own_tokens, token_places
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS, SequencePart

THETA = 10_000.0
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def compared(
    attend: cp.Attend,
    parts: list[SequencePart],
    layout: HeadLayout,
    dtype: torch.dtype,
    has_documents: bool,
    batch: int = 2,
) -> list[tuple[Tensor, Tensor]]:
    """Output and gradient of the fused projection: of ranks in sequence order, and of one process in float64."""
    length, wide = parts[0].sequence_length, torch.float64
    torch.manual_seed(length)
    qkv = torch.randn(batch, length, layout.query_size + 2 * layout.key_size, dtype=wide).to(dtype)
    gradient = torch.randn(batch, length, layout.query_size, dtype=wide).to(dtype)
    documents = DocumentMask(cp.random_starts(batch, length, length)) if has_documents else None
    positions = torch.arange(length)[None] if documents is None else documents.positions_BS

    def turn(places: Tensor, dtype: torch.dtype) -> Rotation:
        return turned_at(rotation(length, layout.head_dim, THETA, dtype), positions[:, places])

    everywhere = torch.arange(length)
    whole = qkv.to(wide).requires_grad_()
    expected = causal_attention(whole, layout, turn(everywhere, wide), documents)
    (expected_gradient,) = torch.autograd.grad(expected, whole, gradient.to(wide))
    local = qkv.requires_grad_()
    places = [everywhere if attend is cp.by_heads else token_places(part) for part in parts]
    turns = [turn(each, dtype) for each in places]
    outputs = attend([own_tokens(local, part) for part in parts], turns, layout, parts, documents)
    order = torch.cat([token_places(part) for part in parts]).argsort()
    found = torch.cat(outputs, 1)[:, order]
    (found_gradient,) = torch.autograd.grad(found, local, gradient)
    return [(found.detach(), expected.detach()), (found_gradient, expected_gradient)]


@given(
    degree=st.integers(1, 5),
    arrangement=st.sampled_from(ARRANGEMENTS),
    run=st.integers(1, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 3)]),
    window=st.sampled_from([0, 0, 1, 5, 37]),
    has_documents=st.booleans(),
    is_gathered=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_blocks_together_are_the_whole_sequence(
    degree: int,
    arrangement: str,
    run: int,
    heads: tuple[int, int],
    window: int,
    has_documents: bool,
    is_gathered: bool,
    dtype: torch.dtype,
) -> None:
    parts = cp.parts_of(run * 2 * degree, degree, arrangement)
    layout = HeadLayout(heads[0], heads[1], 8, window)
    attend = cp.by_gather if is_gathered else cp.by_ring
    for found, expected in compared(attend, parts, layout, dtype, has_documents):
        torch.testing.assert_close(found.to(torch.float64), expected, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("window", [0, 200])
@pytest.mark.parametrize("attend", [cp.by_ring, cp.by_gather])
def test_blocks_of_several_kernel_calls(attend: cp.Attend, window: int) -> None:
    """Runs longer than a block of queries under a mask."""
    parts = cp.parts_of(1200, 3, "zigzag")
    for found, expected in compared(attend, parts, HeadLayout(1, 2, 8, window), torch.float64, window > 0, 1):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", [1, 2, 8])
def test_errors_in_16_bits_do_not_grow_with_the_ring(degree: int) -> None:
    """No larger than those of one call of torch's own attention on the whole sequence, give or take a rounding."""
    layout = HeadLayout(2, 2, 16)
    parts = cp.parts_of(256, degree, "zigzag")
    ring = compared(cp.by_ring, parts, layout, torch.bfloat16, False)
    one = compared(_fused, cp.parts_of(256, 1, "contiguous"), layout, torch.bfloat16, False)
    for (found, expected), (single, same) in zip(ring, one):
        assert torch.equal(expected, same)
        mean = float((found.double() - expected).abs().mean())
        assert mean <= 1.1 * float((single.double() - expected).abs().mean())


def _fused(
    qkvs: list[Tensor], turns: list[Rotation], layout: HeadLayout, parts: object, documents: object
) -> list[Tensor]:
    return [causal_attention(qkvs[0], layout, turns[0])]  # in 16 bits: torch's own


@pytest.mark.parametrize("degree", [1, 3])
def test_without_an_order_every_token_sees_all(degree: int) -> None:
    """As encoders attend."""
    parts = cp.parts_of(24, degree, "contiguous")
    query = torch.randn(2, 24, 4, 8, dtype=torch.float64, requires_grad=True)
    block = torch.randn(2, 2, 24, 2, 8, dtype=torch.float64, requires_grad=True)
    rows = (query.transpose(1, 2), *block.transpose(2, 3))
    expected = F.scaled_dot_product_attention(*rows, scale=1.0, enable_gqa=True).transpose(1, 2).flatten(2)
    pairs = [(own_tokens(query, part), own_tokens(block, part, 2)) for part in parts]
    found = torch.cat(cp.ring_of_pairs(pairs, parts), 1)
    gradient = torch.randn_like(found)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    both = [torch.autograd.grad(y, (query, block), gradient, retain_graph=True) for y in (found, expected)]
    for one, other in zip(*both):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_blocks_merge_in_any_order_and_large_scores_do_not_overflow() -> None:
    parts = cp.parts_of(32, 4, "contiguous")
    attention = PartAttention(parts[3])
    query = torch.randn(1, 8, 2, 4) * 100
    blocks = torch.randn(4, 2, 1, 8, 2, 4) * 100
    finals = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        state: AttentionState | None = None
        for source in order:
            state = attention.attend(query, blocks[source], state, parts[source])
        assert state is not None and bool(state.output_BsHD.isfinite().all())
        finals.append(state)
    torch.testing.assert_close(finals[0].output_BsHD, finals[1].output_BsHD, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(finals[0].sums_BHs, finals[1].sums_BHs, rtol=1e-6, atol=0)


def test_a_block_that_nobody_sees_leaves_nothing() -> None:
    """The first rank sees no later tokens, in whatever order they come."""
    first, last = cp.parts_of(16, 2, "contiguous")
    attention, query = PartAttention(first), torch.randn(1, 8, 2, 4)
    empty = attention.attend(query, torch.randn(2, 1, 8, 1, 4), None, last)
    assert not empty.output_BsHD.any() and bool((empty.sums_BHs == EMPTY_SUM).all())
    own = torch.randn(2, 1, 8, 1, 4)
    later, alone = attention.attend(query, own, empty, first), attention.attend(query, own, None, first)
    torch.testing.assert_close(later.output_BsHD, alone.output_BsHD, rtol=0, atol=1e-6)


def test_query_and_block_hold_what_attention_reads() -> None:
    """Turned and scaled as in the attention of one process; without turns scaled only."""
    layout = HeadLayout(1, 2, 4)
    qkv = torch.randn(1, 6, 16, dtype=torch.float64)
    query, block = query_and_block(qkv, layout, None)
    assert query.shape == (1, 6, 2, 4) and block.shape == (2, 1, 6, 1, 4)
    torch.testing.assert_close(query.flatten(2), qkv[..., :8] / 2)
    turn = rotation(6, 4, THETA, torch.float64)
    turned, keys = query_and_block(qkv, layout, turn)
    torch.testing.assert_close(turned[:, 0], query[:, 0])  # the first place turns by nothing
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))
    torch.testing.assert_close(keys[1], block[1])
