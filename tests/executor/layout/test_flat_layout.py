"""Ranges of a flat buffer as segments and boxes: every element once, in its place."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.executor.layout.flat_layout import FlatLayout, boxes

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=5)


@given(shape=st.lists(st.integers(1, 5), max_size=3).map(tuple), data=st.data())
def test_boxes_are_the_range(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = prod(shape)
    first = data.draw(st.integers(0, size - 1))
    length = data.draw(st.integers(0, size - first))
    numbers = torch.arange(size).view(shape)
    found = []
    for box in boxes(shape, first, length):
        place = tuple(slice(at, at + n) for at, n in zip(box.offsets, box.sizes, strict=True))
        found += numbers[place].reshape(-1).tolist()
    assert found == list(range(first, first + length))


def test_a_matrix_has_three_boxes_at_most() -> None:
    assert len(list(boxes((9, 7), 3, 40))) == 3


@given(shapes=SHAPES, num_shards=st.integers(1, 5))
def test_shards_have_every_element_once(shapes: list[tuple[int, ...]], num_shards: int) -> None:
    layout = FlatLayout({str(i): shape for i, shape in enumerate(shapes)}, num_shards)
    assert layout.num_padded == num_shards * layout.shard_size >= layout.num_elements
    flat = torch.arange(layout.num_padded)
    views = layout.views(flat)
    seen: dict[str, list[int]] = {name: [] for name in layout.shapes}
    for number in range(num_shards):
        low, high = layout.shard(number)
        for segment in layout.segments(low, high):
            values = flat[low:high][segment.place : segment.place + segment.length]
            whole = views[segment.name].reshape(-1)[segment.first : segment.first + segment.length]
            assert torch.equal(values, whole)
            seen[segment.name] += range(segment.first, segment.first + segment.length)
    assert seen == {name: list(range(prod(shape))) for name, shape in layout.shapes.items()}
