"""How quantised weights lie in files, and what numbers they are: a reader for each layout.

Layouts, as their makers' own code packs and unpacks them:

- AutoAWQ's "gemm": words of 32 bits hold 8 neighbouring outputs of one input, in the order 0 2 4 6 1 3 5 7.
- AutoGPTQ's: words hold neighbouring inputs of one output; zeros of neighbouring outputs, less one in its first version. An
  input says its group (`g_idx`: after an ordering by activation they lie anywhere).
- compressed-tensors' "pack-quantized": words hold neighbouring inputs, shifted to be positive; zeros of neighbouring outputs.
- 8-bit numbers, of integers or floating point, with a scale for all, for a row, for a group of inputs or for a block.

Shapes: O outputs, I inputs, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.stored.safetensors_folder import MappedTensor
from meshwright.specs.error import ExecutionError

WORD_BITS = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that stands at each place of a word
Numbers = NDArray[np.float32]
Parts = Mapping[str, MappedTensor]  # the tensors of one product, by their last names


class WeightLayout(Protocol):
    """Which tensors a weight is made of, and what it is."""

    @property
    def mark(self) -> tuple[str, ...]:
        """A product that has one of these is quantised."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """All that its weight may consist of."""
        ...

    def weight(self, parts: Parts) -> Numbers:
        """``[O, I]``, in float32."""
        ...


def fields(words: NDArray[np.int32], num_bits: int) -> NDArray[np.uint8]:
    """The fields of every word ``[..., n]``, the lowest bits first: ``[..., n * 32 / num_bits]``."""
    shifts = np.arange(0, WORD_BITS, num_bits, dtype=np.uint32)
    found = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << num_bits) - 1)
    return found.astype(np.uint8).reshape(*words.shape[:-1], -1)


@dataclass(frozen=True)
class AwqLayout:
    """``qweight [I, O / 8]``, ``qzeros [G, O / 8]``, ``scales [G, O]``: (q - zero) x scale."""

    num_bits: int = 4
    mark = ("qweight",)
    parts = ("qweight", "qzeros", "scales")

    def weight(self, parts: Parts) -> Numbers:
        """See `WeightLayout`."""
        codes_IO, zeros_GO = (self._ordered(parts[name].integers()) for name in ("qweight", "qzeros"))
        scales_GO = parts["scales"].numbers()
        groups_I = _equal_groups(len(codes_IO), len(scales_GO))
        return _grouped(codes_IO, zeros_GO.astype(np.float32), scales_GO, groups_I)

    def _ordered(self, words: NDArray[np.int32]) -> NDArray[np.uint8]:
        mixed = fields(words, self.num_bits).reshape(*words.shape, -1)
        return mixed[..., np.argsort(AWQ_ORDER)].reshape(len(words), -1)


@dataclass(frozen=True)
class GptqLayout:
    """``qweight [I * bits / 32, O]``, ``qzeros [G, O * bits / 32]``, ``scales [G, O]``, ``g_idx [I]``.

    Args:
        num_bits: 2, 4 or 8.
        zero_offset: what is added to zeros: 1 in the first version of the format.
    """

    num_bits: int = 4
    zero_offset: int = 1
    mark = ("qweight",)
    parts = ("qweight", "qzeros", "scales", "g_idx")

    def weight(self, parts: Parts) -> Numbers:
        """See `WeightLayout`."""
        codes_IO = fields(np.ascontiguousarray(parts["qweight"].integers().T), self.num_bits).T
        zeros_GO = fields(parts["qzeros"].integers(), self.num_bits).astype(np.float32) + self.zero_offset
        scales_GO = parts["scales"].numbers()
        told = parts["g_idx"].integers() if "g_idx" in parts else None
        groups_I = _equal_groups(len(codes_IO), len(scales_GO)) if told is None else told
        return _grouped(codes_IO, zeros_GO, scales_GO, groups_I)


@dataclass(frozen=True)
class PackedLayout:
    """compressed-tensors: ``weight_packed [O, I * bits / 32]``, ``weight_shape``, ``weight_scale [O, G]``, perhaps
    ``weight_zero_point [O * bits / 32, G]`` and ``weight_g_idx [I]``. How many bits, the shapes say.
    """

    mark = ("weight_packed",)
    parts = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")

    def weight(self, parts: Parts) -> Numbers:
        """See `WeightLayout`."""
        words = parts["weight_packed"].integers()
        num_outputs, num_inputs = (int(size) for size in parts["weight_shape"].integers())
        num_bits = words.shape[1] * WORD_BITS // num_inputs
        if num_bits not in (4, 8):
            raise ExecutionError(f"weights packed in {num_bits} bits", allowed="4 or 8")
        lowest = 1 << (num_bits - 1)
        codes_IO = fields(words, num_bits)[:, :num_inputs].T
        scales = parts["weight_scale"].numbers()
        scales_GO = (scales if scales.ndim == 2 else scales.reshape(-1, 1)).T
        scales_GO = np.broadcast_to(scales_GO, (len(scales_GO), num_outputs))
        zeros_GO: Numbers = np.full((1, 1), lowest, np.float32)
        if "weight_zero_point" in parts:
            words = np.ascontiguousarray(parts["weight_zero_point"].integers().T)
            zeros_GO = fields(words, num_bits)[:, :num_outputs].astype(np.float32)
        groups_I = _equal_groups(num_inputs, len(scales_GO))
        if "weight_g_idx" in parts and (told := parts["weight_g_idx"].integers()).min() >= 0:
            groups_I = told  # negative: nobody ordered them
        return _grouped(codes_IO, np.broadcast_to(zeros_GO, scales_GO.shape), scales_GO, groups_I)


@dataclass(frozen=True)
class ScaledLayout:
    """``weight [O, I]`` of 8 bits a number, and one of `scales`; perhaps ``weight_zero_point``.

    Args:
        block: outputs and inputs that share a scale, where scales are in two directions; (): as their number says.
    """

    block: tuple[int, ...] = ()
    mark = ("weight_scale_inv", "weight_scale")
    parts = ("weight", *mark, "weight_zero_point")

    def weight(self, parts: Parts) -> Numbers:
        """See `WeightLayout`."""
        found, scale = parts["weight"].numbers(), next(parts[name] for name in self.mark if name in parts)
        if "weight_zero_point" in parts:
            found -= self._spread(parts["weight_zero_point"].numbers(), found.shape)
        found *= self._spread(scale.numbers(), found.shape)
        return found

    def _spread(self, scales: Numbers, shape: tuple[int, ...]) -> Numbers:
        """One for every number, or what numpy spreads to that."""
        if scales.size == 1:
            return scales.reshape(1, 1)
        scales = scales.reshape(len(scales), -1)
        block = self.block or tuple(-(-size // num) for size, num in zip(shape, scales.shape, strict=True))
        if scales.shape[1] == 1 and len(scales) == shape[0]:
            return scales
        wanted = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
        if scales.shape != wanted:
            raise ExecutionError(
                f"scales {scales.shape} of a weight {shape}", allowed=f"{wanted}, of blocks {block}"
            )
        rows = np.repeat(scales, block[0], axis=0)[: shape[0]]
        return np.repeat(rows, block[1], axis=1)[:, : shape[1]]


def _equal_groups(num_inputs: int, num_groups: int) -> NDArray[np.int64]:
    """Which group each input is of, where they lie one behind the other ``[I]``."""
    return np.arange(num_inputs) // -(-num_inputs // num_groups)


def _grouped(
    codes_IO: NDArray[np.uint8], zeros_GO: Numbers, scales_GO: Numbers, groups_I: NDArray[np.int64]
) -> Numbers:
    """(q - zero) x scale ``[O, I]``, each input by its group's."""
    if groups_I.max() >= len(scales_GO) or scales_GO.shape[1] != codes_IO.shape[1]:
        raise ExecutionError(
            f"scales {scales_GO.shape} of {codes_IO.shape[1]} outputs and {groups_I.max() + 1} groups",
            allowed="one for each of both",
        )
    found = codes_IO.astype(np.float32)
    found -= zeros_GO[groups_I]
    found *= scales_GO[groups_I]
    return np.ascontiguousarray(found.T)
