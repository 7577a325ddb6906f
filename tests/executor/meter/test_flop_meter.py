"""FLOPs as they are computed: products by their sizes, attention by pairs, in place or not, of this thread and others."""

from __future__ import annotations

import threading

import pytest
import torch

from meshwright.executor.meter.flop_meter import ATTENTION, PRODUCTS, FlopMeter
from meshwright.executor.ops.attention.tile_kernel import tile_backward, tile_forward
from meshwright.executor.ops.attention.visible_tile import Tile

ROWS, INNER, COLUMNS = 3, 5, 7


def test_a_product_and_its_gradients_are_three_products() -> None:
    x, weight = torch.ones(ROWS, INNER, requires_grad=True), torch.ones(COLUMNS, INNER, requires_grad=True)
    meter = FlopMeter()
    with meter.in_thread():
        torch.nn.functional.linear(x, weight).sum().backward()  # type: ignore[no-untyped-call]
    assert meter.flops == {PRODUCTS: 3 * 2 * ROWS * INNER * COLUMNS}


def test_what_is_added_in_place_is_a_product_and_what_is_only_added_none() -> None:
    meter = FlopMeter()
    total = torch.zeros(ROWS, COLUMNS)
    with meter.in_thread():
        total.addmm_(torch.ones(ROWS, INNER), torch.ones(INNER, COLUMNS))
        total.unsqueeze(0).baddbmm_(torch.ones(1, ROWS, INNER), torch.ones(1, INNER, COLUMNS))
        total.add_(total)
    assert meter.flops == {PRODUCTS: 2 * 2 * ROWS * INNER * COLUMNS}
    total.addmm_(torch.ones(ROWS, INNER), torch.ones(INNER, COLUMNS))
    assert meter.flops[PRODUCTS] == 2 * 2 * ROWS * INNER * COLUMNS, "outside nothing is counted"


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_counts_the_pairs_that_it_looks_at(is_causal: bool) -> None:
    batch, heads, tokens, size = 2, 3, 4, 8
    query, key, value = torch.randn(3, batch, heads, tokens, size, dtype=torch.float64).unbind()
    tile = Tile(slice(0, tokens), slice(0, tokens), is_causal, None)
    meter = FlopMeter()
    with meter.in_thread():
        output, sums = tile_forward(query, key, value, tile, 1.0)
    pairs = tokens * (tokens + 1) // 2 if is_causal else tokens * tokens
    assert meter.flops == {ATTENTION: 2 * 2 * batch * heads * size * pairs}
    with meter.in_thread():
        tile_backward(query, key, value, output, sums, torch.ones_like(output), tile, 1.0)
    assert meter.flops == {ATTENTION: (2 + 5) * 2 * batch * heads * size * pairs}


def test_threads_count_into_one_meter() -> None:
    meter = FlopMeter()

    def run() -> None:
        with meter.in_thread():
            torch.ones(ROWS, INNER) @ torch.ones(INNER, COLUMNS)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert meter.flops == {PRODUCTS: 2 * 2 * ROWS * INNER * COLUMNS}
