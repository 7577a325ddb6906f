"""Operations of a decoder in the forms that OpenVINO's CPU plugin knows and fuses: each comment says what would break it.

Shapes: T tokens, N heads, D the width of a head. Hidden states are ``[T, 1, width]``: tokens take the place of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from openvino import Node, PartialShape, Type
from openvino import opset13 as opset
from openvino.utils.node_factory import NodeFactory

_OPSET4 = NodeFactory("opset4")


def whole(values: int | Sequence[int]) -> Node:
    """A constant of int64: an axis, a shape, a range."""
    return opset.constant(np.asarray(values, np.int64))


def real(values: float | NDArray[np.float64] | NDArray[np.float32]) -> Node:
    """A constant of float32."""
    return opset.constant(np.asarray(values, np.float32))


def parameter(name: str, shape: Sequence[int], kind: Type) -> Node:
    """An input of the graph; -1 is a size that each call says anew."""
    made = opset.parameter(PartialShape(list(shape)), kind)
    made.set_friendly_name(name)
    made.output(0).set_names({name})
    return made


def product(x: Node, weight: Node) -> Node:
    """x times the transpose of ``weight [outputs, inputs]``."""
    return opset.matmul(x, weight, False, True)


def rms_norm(x: Node, weight: NDArray[np.float32], epsilon: float) -> Node:
    """Fused as RMS: 1 / sqrt(...) is a division, and the weight is the first factor."""
    mean_square = opset.reduce_mean(opset.power(x, real(2.0)), whole([-1]), keep_dims=True)
    inverse = opset.divide(real(1.0), opset.sqrt(opset.add(mean_square, real(epsilon))))
    return opset.multiply(real(weight), opset.multiply(x, inverse))


def rotary_table(positions: Node, frequencies: Sequence[float]) -> tuple[Node, Node]:
    """Cosines and sines ``[T, 1, 1, D]`` of the angles at ``positions [T]``."""
    positions_T1 = opset.unsqueeze(opset.convert(positions, "f32"), whole([1]))
    angles = opset.multiply(positions_T1, real(np.asarray([frequencies])))
    both_halves = opset.concat([angles, angles], 1)
    shape = whole([-1, 1, 1, 2 * len(frequencies)])
    cosines, sines = (opset.reshape(of(both_halves), shape, False) for of in (opset.cos, opset.sin))
    return cosines, sines


def turned(x: Node, table: tuple[Node, Node], head_dim: int) -> Node:
    """``x [T, N, 1, D]`` at its positions. Fused as RoPE: four axes, Slice (not Split), and a product with -1."""
    cosines, sines = table
    half, end = head_dim // 2, np.iinfo(np.int64).max
    lower = opset.slice(x, whole([0]), whole([half]), whole([1]), whole([3]))
    upper = opset.slice(x, whole([half]), whole([end]), whole([1]), whole([3]))
    quarter_turn = opset.concat([opset.multiply(upper, real(np.full((1, 1, 1, 1), -1.0))), lower], -1)
    return opset.add(opset.multiply(x, cosines), opset.multiply(quarter_turn, sines))


def silu(x: Node) -> Node:
    """Swish of one input: `opset13.swish` adds a second one, with which the MLP of AMX machines (LLMMLP) is not fused."""
    return _OPSET4.create("Swish", [x.output(0)], {})


def gelu_tanh(x: Node) -> Node:
    """GELU by tanh."""
    return opset.gelu(x, "tanh")
