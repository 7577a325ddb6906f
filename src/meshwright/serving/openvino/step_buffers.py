"""The inputs of a step in memory that the graph reads every time: a step copies into it and makes nothing anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import Type

_TYPES: dict[np.dtype[Any], Type] = {np.dtype(np.int64): Type.i64, np.dtype(np.int32): Type.i32}


class StepBuffer:
    """One input of a graph, of a length that differs between steps; `view` is what the graph reads. Grown, never shrunk."""

    def __init__(
        self, request: openvino.InferRequest, name: str, kind: type[np.integer[Any]], capacity: int
    ) -> None:
        self._request, self._name, self._kind = request, name, np.dtype(kind)
        self._size = self._capacity = 0
        self._allocate(capacity)

    def fill(self, values: NDArray[Any]) -> None:
        """Copy ``values [n]``; the graph sees n numbers."""
        size = values.size
        if size != self._size:
            if size > self._capacity:
                self._allocate(max(size, 2 * self._capacity))
            self._tensor.shape = [size]
            self.view, self._size = self._tensor.data, size
        self.view[...] = values

    def _allocate(self, capacity: int) -> None:
        self._tensor = openvino.Tensor(_TYPES[self._kind], openvino.Shape([capacity]))
        self._capacity = self._size = capacity
        self.view = self._tensor.data
        self._request.set_tensor(self._name, self._tensor)


class StepScalar:
    """One input of a graph that is a single number."""

    def __init__(self, request: openvino.InferRequest, name: str) -> None:
        self._tensor = openvino.Tensor(Type.i32, openvino.Shape([]))
        self._view = self._tensor.data
        request.set_tensor(name, self._tensor)

    def fill(self, value: int) -> None:
        """Write it."""
        self._view[()] = value
