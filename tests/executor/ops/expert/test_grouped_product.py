"""One kernel for all experts and a loop over them give the same products and gradients, whoever has the rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.executor.ops.expert.grouped_product import Grouped, Looped, products_of

NUM_ROWS, INPUTS, OUTPUTS = 24, 16, 8
LOADS = {"even": [6, 6, 6, 6], "an expert without rows": [9, 0, 5, 10], "all on one": [0, 0, 24, 0]}
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def _drawn(*shape: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)


def _largest_difference(counts: list[int], dtype: torch.dtype, device: str) -> float:
    """Between both, of the largest number, over the three products."""
    x_NI = _drawn(NUM_ROWS, INPUTS, dtype=dtype, device=device)
    dy_NO = _drawn(NUM_ROWS, OUTPUTS, dtype=dtype, device=device)
    weight_XOI = _drawn(len(counts), OUTPUTS, INPUTS, dtype=dtype, device=device)
    counts_X = torch.tensor(counts, device=device)
    made = []
    for products in (Looped(counts_X), Grouped(counts_X)):
        gradient_XOI = torch.ones_like(weight_XOI)  # there is one already
        products.add_weights(x_NI, dy_NO, gradient_XOI)
        made.append((products.forward(x_NI, weight_XOI), products.inputs(dy_NO, weight_XOI), gradient_XOI))
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in zip(*made, strict=True))


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", LOADS)
def test_both_give_the_same(name: str, dtype: torch.dtype) -> None:
    assert _largest_difference(LOADS[name], dtype, "cpu") < ROUNDING[dtype]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")
@pytest.mark.parametrize("name", LOADS)
def test_both_give_the_same_on_a_gpu(name: str) -> None:
    assert _largest_difference(LOADS[name], torch.bfloat16, "cuda") < ROUNDING[torch.bfloat16]
    x_NI = _drawn(NUM_ROWS, INPUTS, dtype=torch.bfloat16, device="cuda")
    weight_XOI = _drawn(4, OUTPUTS, INPUTS, dtype=torch.bfloat16, device="cuda")
    counts_X = torch.tensor(LOADS["even"], device="cuda")
    assert isinstance(products_of(counts_X, x_NI, weight_XOI), Grouped)
    assert isinstance(products_of(counts_X, x_NI.float(), weight_XOI.float()), Looped)


def test_a_cpu_takes_the_loop() -> None:
    x_NI, weight_XOI = torch.zeros(4, 8), torch.zeros(2, 8, 8)
    assert isinstance(products_of(torch.tensor([1, 3]), x_NI, weight_XOI), Looped)
