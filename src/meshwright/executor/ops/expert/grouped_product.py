"""Products of every expert's rows with its matrix: torch's grouped kernel where there is one, else a loop over experts.

Shapes: N rows sorted by expert, X experts here, I inputs, O outputs.

The kernel (torch.nn.functional.grouped_mm) reads how many rows every expert has where the counts are, so that the host does
not wait for them; the loop needs them on the host.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

KERNEL_DTYPE = torch.bfloat16  # of torch 2.13's kernel on GPUs
LEAST_CAPABILITY = (8, 0)  # Ampere, as its documentation says
ALIGNED_BYTES = 16  # rows and tensors begin at a multiple of so many

Part = tuple[int, int, int]  # an expert, and the first of its rows and the one behind the last


class Products(Protocol):
    """Products of rows sorted by expert, some of which may have none."""

    def forward(self, x_NI: Tensor, weight_XOI: Tensor) -> Tensor:
        """[N, O]."""

    def inputs(self, dy_NO: Tensor, weight_XOI: Tensor) -> Tensor:
        """Gradient of the rows, [N, I]."""

    def add_weights(self, x_NI: Tensor, dy_NO: Tensor, gradient_XOI: Tensor) -> None:
        """Add the matrices' gradient to one."""


def products_of(counts_X: Tensor, x_NI: Tensor, weight_XOI: Tensor) -> Products:
    """What runs for these rows and matrices."""
    return Grouped(counts_X) if takes_kernel(x_NI, weight_XOI) else Looped(counts_X)


def takes_kernel(x_NI: Tensor, weight_XOI: Tensor) -> bool:
    """Does the grouped kernel take them, in both directions?"""
    if not hasattr(F, "grouped_mm"):  # of older releases
        return False
    if x_NI.device.type != "cuda" or x_NI.dtype != KERNEL_DTYPE or weight_XOI.dtype != KERNEL_DTYPE:
        return False
    if torch.cuda.get_device_capability(x_NI.device) < LEAST_CAPABILITY or len(x_NI) == 0:
        return False
    row_bytes = (size * weight_XOI.element_size() for size in weight_XOI.shape[1:])
    starts = (x_NI.data_ptr(), weight_XOI.data_ptr())
    return all(number % ALIGNED_BYTES == 0 for number in (*row_bytes, *starts))


class Looped:
    """An expert after the other, into one result."""

    def __init__(self, counts_X: Tensor) -> None:
        ends = counts_X.cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        spans = enumerate(zip(starts, ends, strict=True))
        self.parts: list[Part] = [(x, low, high) for x, (low, high) in spans if low < high]

    def forward(self, x_NI: Tensor, weight_XOI: Tensor) -> Tensor:
        """See `Products`."""
        y_NO = x_NI.new_empty((len(x_NI), weight_XOI.shape[1]))
        for expert, low, high in self.parts:
            torch.mm(x_NI[low:high], weight_XOI[expert].t(), out=y_NO[low:high])
        return y_NO

    def inputs(self, dy_NO: Tensor, weight_XOI: Tensor) -> Tensor:
        """See `Products`."""
        dx_NI = dy_NO.new_empty((len(dy_NO), weight_XOI.shape[2]))
        for expert, low, high in self.parts:
            torch.mm(dy_NO[low:high], weight_XOI[expert], out=dx_NI[low:high])
        return dx_NI

    def add_weights(self, x_NI: Tensor, dy_NO: Tensor, gradient_XOI: Tensor) -> None:
        """See `Products`."""
        for expert, low, high in self.parts:
            gradient_XOI[expert].addmm_(dy_NO[low:high].t(), x_NI[low:high])


class Grouped:
    """One kernel for all experts."""

    def __init__(self, counts_X: Tensor) -> None:
        self.is_empty_X, self.ends_X = counts_X == 0, counts_X.cumsum(0).to(torch.int32)

    def forward(self, x_NI: Tensor, weight_XOI: Tensor) -> Tensor:
        """See `Products`."""
        return F.grouped_mm(x_NI.contiguous(), weight_XOI.transpose(1, 2), offs=self.ends_X)

    def inputs(self, dy_NO: Tensor, weight_XOI: Tensor) -> Tensor:
        """See `Products`."""
        return F.grouped_mm(dy_NO.contiguous(), weight_XOI, offs=self.ends_X)

    def add_weights(self, x_NI: Tensor, dy_NO: Tensor, gradient_XOI: Tensor) -> None:
        """See `Products`. An expert without rows adds nothing, whatever a kernel leaves in its place."""
        found_XOI = F.grouped_mm(dy_NO.contiguous().t(), x_NI.contiguous(), offs=self.ends_X)
        gradient_XOI += found_XOI.masked_fill_(self.is_empty_X[:, None, None], 0.0)
