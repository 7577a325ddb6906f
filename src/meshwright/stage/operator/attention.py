"""Operators of attention's core: products of a device's queries with keys, sums over what comes piece by piece, copies.

Letters: S tokens of a sequence, R devices of a ring (or groups of those that divide heads), s = S / R queries of a device.

    alone        one causal product of S
    contiguous   of the last device, for which the others wait: a causal one of s, and R - 1 squares
    zigzag       a causal one of s, and R - 1 rectangles of half a square: s queries and s / 2 keys, or the reverse
    stripe       R causal ones of s

Where keys and values travel (`in_pieces`) every product but the first is merged into what is known: an output is read and
written in a wide format, as single operations (`PartAttention`). Where devices divide heads, what they exchange is copied to
lie by device before, and by sequence behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import NamedTuple

from meshwright.specs.model.block import Attention, attended_pairs
from meshwright.specs.operator import Operator, Phase
from meshwright.specs.sequence.context_parallel import repeats_of_key
from meshwright.specs.sequence.sequence_part import SequencePart, most_attended_pairs
from meshwright.stage.operator.layer import LocalSizes, MicrobatchShape

# FlashAttention-2 (Dao 2023, arXiv 2307.08691): products over the width of a query and over that of a value.
# Forward: scores, result. Backward: scores again, gradients of queries and keys; of values and probabilities.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = (1, 1), (3, 2)
# Of one score, unfused, in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198, section 4.1): the fused softmax with
# its scale and mask reads and writes it; backward it reads its result and the gradient and writes. Dropout reads it,
# writes it and its mask of one byte; backward it reads gradient and mask and writes.
SOFTMAX_BYTES: Mapping[str, int] = {"unfused": 4, "unfused_dropout": 9}
SOFTMAX_BACKWARD_BYTES: Mapping[str, int] = {"unfused": 6, "unfused_dropout": 11}
SOFTMAX_FLOPS = 8  # scale, mask, exponential as 4, sum, quotient
# Of a number that is merged, in the wide format: the difference reads one and writes one, its share of that reads and
# writes, the sum reads two and writes; the new one is read once as it is. Of a gradient's sum: read and written, and the new
# one read.
MERGE_WIDE_TOUCHES, SUM_WIDE_TOUCHES = 7, 2
MERGE_FLOPS = 3
WIDE_BYTES = 4  # in which outputs and gradients of 16-bit numbers are summed
COPIES_OF_EXCHANGE = 2  # around an exchange of heads: by device, and back by sequence; each reads and writes
MERGE, WIDEN, TO_HEADS = "merge of pieces", "wide sums", "heads by device"
OF_ATTENTION = (
    MERGE,
    WIDEN,
    TO_HEADS,
)  # labels of what attention over several devices runs beside its products


class Product(NamedTuple):
    """Kernels of a device's queries with keys: `times` of them, each of `copies` times as many sequences as there are, of
    `length` queries and keys; ``causal`` as in an operator's shape. `pairs`: of a query and a key that all see together."""

    copies: int
    length: int
    causal: int
    times: int
    pairs: float


def _products(shape: MicrobatchShape, window: int) -> tuple[Product, ...]:
    """Of the device that attends to most: with its own keys, and with those of others."""
    ring, length, seen = shape.ring_degree, shape.attending_length, _window_of_products(shape, window)
    if ring == 1:
        return (Product(1, length, seen or 1, 1, attended_pairs(shape.sequence_length, window)),)
    pairs = most_attended_pairs(SequencePart(shape.sequence_length, ring, 0, shape.arrangement), window)
    if shape.arrangement == "stripe":
        return (Product(1, length, seen or 1, ring, pairs),)
    if seen:
        return (Product(1, length, seen, 1, pairs),)
    own = attended_pairs(length, window)
    copies, side = (1, length) if shape.arrangement == "contiguous" else (2, length // 2)
    others = Product(copies, side, 0, ring - 1, pairs - own)
    if not shape.in_pieces:  # gathered: all at once
        others = others._replace(copies=copies * others.times, times=1)
    return (Product(1, length, 1, 1, own), others)


def _window_of_products(shape: MicrobatchShape, window: int) -> int:
    """Of a causal product of a device's queries with the keys of one device; 0: it is no shorter than what they are of. Of a
    stripe's keys every device has its share of a window."""
    is_striped = shape.arrangement == "stripe" and shape.ring_degree > 1
    seen = max(1, window // shape.ring_degree) if is_striped and window else window
    return seen if 0 < seen < shape.attending_length else 0


def _kernels(
    attention: Attention, local: LocalSizes, shape: MicrobatchShape, products: tuple[int, int], label: str
) -> Iterator[Operator]:
    """Products of this device's queries, and, of a chunk, those with the keys in front of it: square ones, as many as
    its rectangle has (a window leaves some of them out). `products`: over the widths of a query and of a value."""
    is_backward, window, length = products != FORWARD_PRODUCTS, attention.window, shape.local_length
    phase: Phase = "backward" if is_backward else "forward"
    columns = (1 + is_backward) * (local.query + local.key + local.value + local.result)
    size_bytes = columns * shape.num_tokens * shape.element_bytes
    numbers = products[0] * attention.head_dim + products[1] * attention.value_dim  # of a pair in a head
    width, among = (attention.head_dim + attention.value_dim + 1) // 2, shape.heads_degree
    heads, kv_heads = local.heads, local.kv_heads
    if among > 1:
        heads, kv_heads = heads // among, kv_heads * repeats_of_key(heads, kv_heads, among) // among
    flops, found = 2 * shape.num_sequences * heads * numbers, _products(shape, window)
    for each in found:
        dims = (each.copies * shape.num_sequences, heads, kv_heads, each.length, width, each.causal)
        yield Operator(
            "attention", each.pairs / each.times * flops, size_bytes, dims, each.times, phase, label
        )
    if not shape.num_earlier:
        return
    own = sum(each.pairs for each in found)
    ahead = (
        attended_pairs(length + shape.num_earlier, window) - attended_pairs(shape.num_earlier, window) - own
    )
    if ahead:
        side = gcd(length, shape.num_earlier)
        count, dims = max(1, round(ahead / side**2)), (shape.num_sequences, heads, kv_heads, side, width, 0)
        of_square, label = size_bytes * side / length, f"{label} to earlier"
        yield Operator("attention", ahead / count * flops, of_square, dims, count, phase, label)


def attention_forward(
    attention: Attention, local: LocalSizes, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """Causal attention of this device's queries. Fused, scores are not stored: reads q, k, v and writes the result."""
    if shape.attention != "flash":
        own = _unfused(attention, local, shape, SOFTMAX_BYTES[shape.attention], is_backward=False)
    else:
        own = tuple(_kernels(attention, local, shape.attended, FORWARD_PRODUCTS, "attention"))
    return (*own, *_merges(attention, local, shape), *_copies(local, shape))


def attention_backward(
    attention: Attention, local: LocalSizes, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """Reads q, k, v, the result and its gradient; writes three gradients."""
    if shape.attention != "flash":
        own = _unfused(attention, local, shape, SOFTMAX_BACKWARD_BYTES[shape.attention], is_backward=True)
    else:
        own = tuple(_kernels(attention, local, shape.attended, BACKWARD_PRODUCTS, "attention backward"))
    return (*own, *_sums(attention, local, shape), *_copies(local, shape))


def _num_merged(attention: Attention, shape: MicrobatchShape) -> int:
    """Pieces of keys and values that come from others and are seen: by documents that a device has whole, none."""
    is_own = 0 < shape.document_length <= shape.attending_length
    if not shape.in_pieces or is_own or shape.attention != "flash":
        return 0
    return sum(each.times for each in _products(shape, attention.window)) - 1


def _merges(attention: Attention, local: LocalSizes, shape: MicrobatchShape) -> Iterator[Operator]:
    """Of outputs: the first is widened, each other one merged, the last narrowed. In a zigzag the last device, for which the
    others wait, merges all rows of every piece."""
    count, size = _num_merged(attention, shape), shape.element_bytes
    if not count:
        return
    rows, columns, wide = shape.num_tokens, local.result, max(size, WIDE_BYTES)
    numbers = float(rows * columns)
    merged_bytes = numbers * (MERGE_WIDE_TOUCHES * wide + size)
    yield Operator("elementwise", MERGE_FLOPS * numbers, merged_bytes, (rows, columns), count, label=MERGE)
    if wide > size:
        yield Operator("elementwise", 0.0, 2 * numbers * (wide + size), (rows, columns), label=WIDEN)


def _sums(attention: Attention, local: LocalSizes, shape: MicrobatchShape) -> Iterator[Operator]:
    """Of the gradients of queries, and of keys and values as they travel: every piece's is added to zeros, which are written
    once, and both are narrowed once."""
    count, size = _num_merged(attention, shape), shape.element_bytes
    if not count:
        return
    rows, columns, wide = shape.num_tokens, local.query + local.key + local.value, max(size, WIDE_BYTES)
    numbers = float(rows * columns)
    summed_bytes = numbers * (SUM_WIDE_TOUCHES * wide + size)
    yield Operator("elementwise", numbers, summed_bytes, (rows, columns), count, label=MERGE)
    once_bytes = summed_bytes + numbers * wide + (numbers * (wide + size) if wide > size else 0.0)
    yield Operator("elementwise", numbers, once_bytes, (rows, columns), label=WIDEN)


def _copies(local: LocalSizes, shape: MicrobatchShape) -> Iterator[Operator]:
    """Around the exchanges of heads: queries, keys, values (one for each device at least) and the result; so of gradients."""
    if shape.heads_degree == 1:
        return
    repeats = repeats_of_key(local.heads, local.kv_heads, shape.heads_degree)
    columns = local.query + repeats * (local.key + local.value) + local.result
    numbers = float(shape.num_tokens * columns)
    size_bytes = 2 * numbers * shape.element_bytes
    dims = (shape.num_tokens, columns)
    yield Operator("elementwise", 0.0, size_bytes, dims, COPIES_OF_EXCHANGE, label=TO_HEADS)


def _unfused(
    attention: Attention, local: LocalSizes, shape: MicrobatchShape, bytes_each: int, *, is_backward: bool
) -> tuple[Operator, ...]:
    """Products of whole score matrices, one for each head of each sequence, and what softmax and dropout touch."""
    heads, width = shape.num_sequences * local.heads, attention.head_dim
    queries, keys = shape.local_length, shape.sequence_length
    scores = _heads_product("scores", heads, (queries, keys, width), shape)
    result = _heads_product("result", heads, (queries, width, keys), shape)
    pairs = heads * queries * keys
    softmax = Operator(
        "elementwise", SOFTMAX_FLOPS * pairs, bytes_each * pairs, (heads * queries, keys), label="softmax"
    )
    if not is_backward:
        return (scores, softmax, result)
    of_keys = _heads_product("key gradient", heads, (keys, width, queries), shape)
    return (scores, of_keys, softmax, result, of_keys)


def _heads_product(label: str, heads: int, dims: tuple[int, int, int], shape: MicrobatchShape) -> Operator:
    """As many products [m, k] @ [k, n] as there are heads, in one kernel.

    A score matrix stays in the level-2 cache between the kernels that write and read it (33 MB of one head at 4,096
    tokens); what goes to memory of it is counted once, with the softmax.
    """
    m, n, k = dims
    of_scores = shape.local_length * shape.sequence_length
    num_bytes = heads * (m * k + k * n + m * n - of_scores) * shape.element_bytes
    return Operator("grouped_matmul", 2.0 * heads * m * n * k, num_bytes, (heads, *dims), label=label)
