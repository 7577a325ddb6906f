"""Operators of attention over several devices: which products each layout leaves, what merging and exchanging moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lowering.plans import DENSE

from meshwright.specs import total_bytes, total_flops
from meshwright.specs.sequence.sequence_part import SequencePart, work_ratio
from meshwright.stage.operator.attention import (
    MERGE,
    OF_ATTENTION,
    TO_HEADS,
    WIDEN,
    attention_backward,
    attention_forward,
)
from meshwright.stage.operator.layer import MicrobatchShape, local_sizes

SHAPE = MicrobatchShape(2, 64, "bfloat16")
PRODUCTS = ("matmul", "grouped_matmul")
BOTH = pytest.mark.parametrize("attention", [attention_forward, attention_backward])
DEGREES = pytest.mark.parametrize("cp", [2, 4, 8])
LOCAL = local_sizes(DENSE, 1)


def of_kind(operators, *kinds):
    return [operator for operator in operators if operator.kind in kinds]


def labelled(operators, label):
    return [operator for operator in operators if operator.label == label]


@BOTH
@DEGREES
def test_the_last_of_contiguous_pieces_attends_to_nearly_all(attention, cp):
    """Liu et al. 2023: without a zigzag the last device has 2 - 1 / P times the mean work: a causal product with its own
    keys, and with those of every other device a whole square."""
    mean, last = (
        attention(DENSE.attention, LOCAL, SHAPE._replace(cp=cp, arrangement=each, in_pieces=True))
        for each in ("zigzag", "contiguous")
    )
    mean, last = of_kind(mean, "attention"), of_kind(last, "attention")
    pairs = 64 * 65 / 2
    seen = pairs - (64 - 64 // cp) * (64 - 64 // cp + 1) / 2
    assert total_flops(last) / total_flops(mean) == pytest.approx(seen / (pairs / cp))
    assert seen / (pairs / cp) == pytest.approx(2 - 1 / cp, rel=0.02)
    own, others = last
    assert own.shape[3:] == (64 // cp, DENSE.head_dim, 1) and own.count == 1
    assert others.shape[3:] == (64 // cp, DENSE.head_dim, 0) and others.count == cp - 1


@pytest.mark.parametrize("window", [0, 16, 40, 64])
@BOTH
@DEGREES
def test_attention_is_divided_among_the_pieces_of_a_sequence(window, attention, cp):
    """All devices together make every pair of query and key that one device makes; under windows the first tokens see fewer,
    and what is counted is the busiest device's."""
    windowed = replace(DENSE.attention, window=window)
    one = attention(windowed, LOCAL, SHAPE)
    many = attention(windowed, LOCAL, SHAPE._replace(cp=cp))
    busiest = work_ratio(SequencePart(64, cp, 0, "zigzag"), window)
    assert cp * total_flops(many) == pytest.approx(busiest * total_flops(one))
    assert busiest == 1.0 if window in (0, 64) else 1.0 < busiest < 1.2
    own, *others = many
    is_local = 0 < window < 64 // cp
    assert own.count == 1 and own.shape[3] == 64 // cp and own.shape[-1] == (window if is_local else 1)
    assert [each.shape[0] for each in others] == ([] if is_local else [SHAPE.num_sequences * 2 * (cp - 1)])


@BOTH
@DEGREES
def test_products_of_every_layout_have_the_pairs_of_their_shapes(attention, cp):
    """Shapes, which decide the price, hold as many pairs as are counted: nothing is priced for what it does not do."""
    for arrangement in ("contiguous", "zigzag", "stripe"):
        shape = SHAPE._replace(sequence_length=1024, cp=cp, arrangement=arrangement, in_pieces=True)
        found = of_kind(attention(DENSE.attention, LOCAL, shape), "attention")
        numbers = [each.shape[0] * each.shape[3] ** 2 * each.count / (1 + each.shape[-1]) for each in found]
        part = SequencePart(1024, cp, 0, arrangement)
        pairs = SHAPE.num_sequences * work_ratio(part) * 1024 * 1025 / 2 / cp
        assert sum(numbers) == pytest.approx(pairs, rel=0.02)


@DEGREES
def test_every_piece_but_the_own_one_is_merged_where_keys_travel(cp):
    """As PartAttention does it: a difference, a product in place and a sum in place in float32 of what is new in 16 bits."""
    shape = SHAPE._replace(cp=cp, in_pieces=True)
    numbers = shape.num_tokens * LOCAL.result
    (merge,) = labelled(attention_forward(DENSE.attention, LOCAL, shape), MERGE)
    assert merge.count == cp - 1 and merge.bytes == numbers * (7 * 4 + 2)
    (wide,) = labelled(attention_forward(DENSE.attention, LOCAL, shape), WIDEN)
    assert wide.count == 1 and wide.bytes == numbers * 2 * (4 + 2)
    back = labelled(attention_backward(DENSE.attention, LOCAL, shape), MERGE)
    assert [each.count for each in back] == [cp - 1]
    in_float32 = attention_forward(DENSE.attention, LOCAL, shape._replace(dtype="float32"))
    assert not labelled(in_float32, WIDEN) and len(labelled(in_float32, MERGE)) == 1
    for attention in (attention_forward, attention_backward):
        gathered = attention(DENSE.attention, LOCAL, SHAPE._replace(cp=cp))
        assert not [each for each in gathered if each.label in OF_ATTENTION]


@BOTH
def test_devices_that_divide_heads_attend_to_whole_sequences_and_copy(attention):
    shape = SHAPE._replace(cp=4, heads_degree=2, in_pieces=True)
    found = attention(DENSE.attention, LOCAL, shape)
    own, others = of_kind(found, "attention")
    assert own.shape[1] == LOCAL.heads // 2 and own.shape[3] == 32 and others.count == 1
    (copied,) = labelled(found, TO_HEADS)
    columns = LOCAL.query + LOCAL.key + LOCAL.value + LOCAL.result
    assert copied.total_bytes == 2 * 2 * 2 * shape.num_tokens * columns
    whole = attention(DENSE.attention, LOCAL, SHAPE._replace(cp=2, heads_degree=2, arrangement="contiguous"))
    (alone,) = of_kind(whole, "attention")
    assert alone.shape[3] == 64 and alone.count == 1 and not labelled(whole, MERGE)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize(
    ("attention", "forward", "backward"), [("unfused", 4, 6), ("unfused_dropout", 9, 11)]
)
def test_unfused_attention_makes_whole_score_matrices(cp, attention, forward, backward):
    """Two products of all pairs forward and four backward, twice the causal ones; scores are written and read."""
    shape = SHAPE._replace(cp=cp, attention=attention)
    local = local_sizes(DENSE, 1)
    pairs = 2 * DENSE.num_heads * 64 * 64 // cp
    for found, products, touched in (
        (attention_forward(DENSE.attention, local, shape), 2, forward),
        (attention_backward(DENSE.attention, local, shape), 4, backward),
    ):
        assert not of_kind(found, "attention")
        assert total_flops(of_kind(found, *PRODUCTS)) == products * pairs * 2 * DENSE.head_dim
        (softmax,) = of_kind(found, "elementwise")
        assert softmax.bytes == touched * pairs
    fused, whole = (
        attention_forward(DENSE.attention, local, each) for each in (SHAPE._replace(cp=cp), shape)
    )
    assert total_bytes(whole) > total_bytes(fused)
