"""A folder whose weights were quantised, read as if they had not been: one tensor `weight` for every product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.stored.packed_weights import WeightLayout
from meshwright.serving.stored.quantisation import layout_of, quantisation_of
from meshwright.serving.stored.safetensors_folder import MappedTensor, SafetensorsFolder
from meshwright.specs.config.source import CONFIG_FILE
from meshwright.specs.error import ExecutionError

WEIGHT = "weight"
# Scales of what is computed between products, which is not quantised here.
OF_ACTIVATIONS = (
    "input_scale", "input_zero_point", "output_scale", "activation_scale", "q_scale", "k_scale", "v_scale",
)  # fmt: skip


class QuantisedFolder(SafetensorsFolder):
    """Weights become numbers when they are asked for. ``is_half``: a graph gets them rounded to bfloat16.

    Raises as `SafetensorsFolder`.
    """

    def __init__(self, folder: Path, layout: WeightLayout, is_half: bool = False) -> None:
        super().__init__(folder)
        self._layout, self._is_half = layout, is_half
        self._products = self._found_products()
        self._made: dict[str, MappedTensor] = {}  # what a graph reads has to stay

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the model, as it was before."""
        return frozenset(self._plain) | {f"{product}.{WEIGHT}" for product in self._products}

    def numbers(self, name: str) -> NDArray[np.float32]:
        """One of them in float32. Raises ExecutionError, which names it."""
        product, _, leaf = name.rpartition(".")
        if leaf != WEIGHT or product not in self._products:
            return self.stored(name).numbers()
        try:
            return self._layout.weight(self._products[product])
        except KeyError as missing:
            raise ExecutionError(
                f"{self.folder}: {product} has no {missing.args[0]}",
                allowed=", ".join(self._layout.parts), next="copy the whole folder of the model",
            ) from None  # fmt: skip
        except (ExecutionError, ValueError) as error:
            raise ExecutionError(f"{self.folder}: {name} cannot be read: {error}") from None

    def tensor(self, name: str, shape: tuple[int, ...]) -> MappedTensor:
        """As of other folders."""
        if name in self._plain:
            return super().tensor(name, shape)
        if name not in self._made:
            found = self.numbers(name)
            if found.shape != shape:
                raise ExecutionError(
                    f"{self.folder}: {name} is {found.shape}", allowed=f"{shape}, as config.json says"
                )
            self._made[name] = _half(found) if self._is_half else MappedTensor(_bytes(found), "F32", shape)
        return self._made[name]

    def _found_products(self) -> dict[str, dict[str, MappedTensor]]:
        """The parts of each quantised weight; and the names of all other tensors."""
        leaves: dict[str, set[str]] = defaultdict(set)
        for name in self._tensors:
            product, _, leaf = name.rpartition(".")
            leaves[product].add(leaf)
        found, used = dict[str, dict[str, MappedTensor]](), set[str]()
        for product, there in leaves.items():
            if not there.isdisjoint(self._layout.mark):
                parts = there.intersection(self._layout.parts)
                found[product] = {part: self._tensors[f"{product}.{part}"] for part in parts}
                used |= {f"{product}.{part}" for part in parts}
        self._plain = {
            name for name in self._tensors
            if name not in used and name.rpartition(".")[2] not in OF_ACTIVATIONS
        }  # fmt: skip
        return found


def open_folder(folder: Path, config: Mapping[str, Any], is_half: bool = False) -> SafetensorsFolder:
    """A folder by what its config.json says of it. Raises as `layout_of`."""
    if not quantisation_of(config):
        return SafetensorsFolder(folder)
    return QuantisedFolder(folder, layout_of(config, str(folder / CONFIG_FILE)), is_half)


def _bytes(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1)


def _half(numbers: NDArray[np.float32]) -> MappedTensor:
    """Rounded to the nearest bfloat16, to the even one of two."""
    bits = numbers.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return MappedTensor(_bytes(bits.astype(np.uint16)), "BF16", numbers.shape)
