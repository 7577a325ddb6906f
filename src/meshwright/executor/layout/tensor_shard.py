"""Which rows or columns of each of the decoder's tensors one device of a tensor-parallel group holds.

Column-parallel matrices are divided by output, row-parallel ones by input, tables by vocabulary (Shoeybi et al. 2019, arXiv
1909.08053). A fused tensor is divided part by part: of queries, keys and values every device has whole heads, of gate and
up the same units, and so of every expert. Norms, routers, learned positions and the bias behind a row-parallel product are
on every device. Of a low-rank addition to a column-parallel matrix B is divided as the matrix is, to a row-parallel one A;
the other factor is on every device. Experts are on devices by their numbers, or as an expert placement says: a permutation of
every layer's own, of which only this file and the order of rows that are sent know.

    shard = TensorShard(model, degree=2, number=1)
    shard.ranges("layers.3.qkv.weight", (12, 8))        # (0, [(2, 4), (6, 8), (10, 12)])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.executor.layout.flat_layout import Box
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.adaptation import LORA_A, LORA_B
from meshwright.specs.model.division import check_division
from meshwright.specs.model.model import ModelSpec

ROW_PARALLEL = (
    "attention_output",
    "cross_attention_output",
    "down",
)  # divided by input, the second dimension of weight and A
COLUMN_PARALLEL = (
    "qkv",
    "sinks",
    "query",
    "widen_query",
    "widen_key_value",
    *("cross_query", "cross_key_value"),
    "gate_up",
)  # weight, bias and B, by output
EXPERT_MATRICES = {
    "expert_gate_up": 1,
    "expert_down": 2,
}  # [experts, outputs, inputs]: by an expert's inner units
WHOLE_BIAS = "expert_down.bias"  # behind a row-parallel product: every device has it, and adds a share
TABLES = ("embedding.weight", "head.weight")
WHOLE = None


@dataclass(frozen=True)
class ExpertShard:
    """Device ``number`` of the ``degree`` among which the experts of a layer are divided; of each it has part
    ``inner_number`` of ``inner_degree`` equal ones of its inner units. It looks for the experts of part ``token_number`` of
    ``token_degree`` of the tokens that all devices of its tensor-parallel group have. Its rows are exchanged among
    ``near_degree`` neighbours first (1: all at once), or where ``sends_once`` last: a token then has one row for each group.
    ``slots``: of every layer of the model its experts by slot, device after device (`ExpertPlacement.slots_in`); empty: by
    their numbers. Of a model that is served an expert may stand in several slots, of different devices."""

    degree: int = 1
    number: int = 0
    inner_degree: int = 1
    inner_number: int = 0
    token_degree: int = 1
    token_number: int = 0
    near_degree: int = 1
    sends_once: bool = False
    slots: tuple[tuple[int, ...], ...] = ()

    def sent_places(self, layer: int, num_experts: int) -> tuple[int, ...] | None:
        """Of every expert of a layer the number by which rows for it are sorted: by its slot, and where ``near_degree``
        neighbours collect rows for each other, by which of these its device is like, then by its group of them. None: by the
        expert's own number."""
        near_degree = 1 if self.sends_once else self.near_degree
        if near_degree == 1 and not self.slots:
            return None
        each, num_far = num_experts // self.degree, self.degree // near_degree
        places = [0] * num_experts
        for slot, expert in enumerate(self.by_slot(layer, num_experts)):
            far, near = divmod(slot // each, near_degree)
            places[expert] = (near * num_far + far) * each + slot % each
        return tuple(places)

    def by_slot(self, layer: int, num_experts: int) -> Sequence[int]:
        """A layer's experts in the order of the devices that have them."""
        return self.slots[layer] if self.slots else range(num_experts)

    @property
    def is_whole(self) -> bool:
        """Has this device all of every expert?"""
        return self.degree == self.inner_degree == 1

    def here(self, layer: int, num_experts: int) -> Sequence[int]:
        """The experts of a layer, of so many, that this device has, in the order of its slots."""
        by_slot = self.by_slot(layer, num_experts)
        each = len(by_slot) // self.degree
        return by_slot[self.number * each : (self.number + 1) * each]


@dataclass(frozen=True)
class TensorShard:
    """Device ``number`` of ``degree``."""

    model: ModelSpec
    degree: int = 1
    number: int = 0
    experts: ExpertShard = ExpertShard()

    @classmethod
    def evenly(cls, model: ModelSpec, degree: int, number: int) -> TensorShard:
        """Experts are divided as all else: of every one a device has its part."""
        return cls(model, degree, number, ExpertShard(inner_degree=degree, inner_number=number))

    def check(self) -> None:
        """Raise PlanError as `check_division`, and ExecutionError where hidden units are not divided evenly."""
        check_division(self.model, self.degree, self.experts.inner_degree)
        if self.model.hidden_size % self.degree:
            raise ExecutionError(
                f"tp({self.degree}) does not divide the model's {self.model.hidden_size} hidden units",
                allowed="a tensor-parallel degree that divides the hidden size, too",
                next="simulate it, or choose a smaller tp",
            )

    def dim(self, name: str) -> int | None:
        """The dimension of a parameter that is divided; WHOLE where every device has all of it."""
        owner, addition = _matrix_of(name)
        if name.endswith(WHOLE_BIAS):
            return WHOLE
        if owner in EXPERT_MATRICES:
            return EXPERT_MATRICES[owner] if self.experts.inner_degree > 1 else WHOLE
        if self.degree == 1:
            return WHOLE
        if name.endswith(TABLES):
            return 0
        if owner in ROW_PARALLEL:
            is_divided = addition == LORA_A or (not addition and name.endswith(".weight"))
            return 1 if is_divided else WHOLE
        return 0 if owner in COLUMN_PARALLEL and addition != LORA_A else WHOLE

    def whole_shape(self, name: str, local: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole tensor, from that of what is here."""
        dim = self.dim(name)
        if _is_of_experts(name):
            local = _changed(local, 0, local[0] * self.experts.degree)
        if dim is None:
            return local
        if name.endswith(TABLES):
            return self.model.vocabulary_size, *local[1:]
        return _changed(local, dim, local[dim] * self._place(name)[1])

    def ranges(self, name: str, whole: tuple[int, ...]) -> tuple[int, list[tuple[int, int]]] | None:
        """The dimension that is divided, and what is here of it, in order; WHOLE where the tensor is not divided.

        `whole` is the shape of the whole tensor. Which experts are here is not in it (`ExpertShard`).
        """
        dim = self.dim(name)
        if dim is None:
            return WHOLE
        if name.endswith(TABLES):
            return dim, [self.rows(whole[0])]
        (owner, _), model = _matrix_of(name), self.model
        if owner == "qkv":
            sizes: tuple[int, ...] = (model.attention.query_size, *(model.attention.key_size,) * 2)
        elif owner == "cross_key_value" or owner.endswith("gate_up"):
            num_parts = 2 if model.has_gated_mlp or owner == "cross_key_value" else 1
            sizes = (whole[dim] // num_parts,) * num_parts
        else:
            sizes = (whole[dim],)
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        number, degree = self._place(name)
        return dim, [
            equal_part(start, size, number, degree) for start, size in zip(starts, sizes, strict=True)
        ]

    def rows(self, vocabulary_size: int) -> tuple[int, int]:
        """Rows of a table that are here; every device has room for as many, the last ones may be padding."""
        rows = -(-vocabulary_size // self.degree)
        return min(self.number * rows, vocabulary_size), min((self.number + 1) * rows, vocabulary_size)

    def _place(self, name: str) -> tuple[int, int]:
        """Which device this is among how many that divide a matrix."""
        if _is_of_experts(name):
            return self.experts.inner_number, self.experts.inner_degree
        return self.number, self.degree

    def is_whole(self, name: str) -> bool:
        """Has every device all of it?"""
        return self.dim(name) is WHOLE and not (_is_of_experts(name) and self.experts.degree > 1)

    def local(self, name: str, value: Tensor) -> Tensor:
        """What is here of a whole tensor; a table has zeros behind its rows where others have more."""
        found = self.ranges(name, tuple(value.shape))
        if _is_of_experts(name) and self.experts.degree > 1:
            value = value[list(self.experts.here(layer_of(name), len(value)))]
        if found is None:
            return value
        dim, ranges = found
        if name.endswith(TABLES):
            part = value.new_zeros((-(-value.shape[0] // self.degree), *value.shape[1:]))
            low, high = ranges[0]
            part[: high - low] = value[low:high]
            return part
        pieces = [value.narrow(dim, low, high - low) for low, high in ranges]
        if len(pieces) == 1:
            return pieces[0].clone(memory_format=torch.contiguous_format)  # a view would keep the whole alive
        return torch.cat(pieces, dim)

    def placed(self, name: str, whole: tuple[int, ...], box: Box) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """A box of what is here, cut where the whole tensor is: each part's place within `box`, and its offsets in the whole
        tensor. Padding is nowhere."""
        if not _is_of_experts(name):
            yield from self._cut(name, whole, box)
            return
        first, size = box.offsets[0], box.sizes[0]
        experts = self.experts.here(layer_of(name), whole[0])[first : first + size]
        for start, length in _runs(experts):
            run = Box(_changed(box.offsets, 0, experts[start]), _changed(box.sizes, 0, length))
            for inside, offsets in self._cut(name, whole, run):
                yield Box(_changed(inside.offsets, 0, start), inside.sizes), offsets

    def _cut(self, name: str, whole: tuple[int, ...], box: Box) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """As `placed`, of a box whose experts are numbered as in the whole tensor."""
        found = self.ranges(name, whole)
        if found is None:
            yield Box(tuple(0 for _ in box.sizes), box.sizes), box.offsets
            return
        dim, ranges = found
        here = 0
        for low, high in ranges:
            first = max(here, box.offsets[dim])
            last = min(here + high - low, box.offsets[dim] + box.sizes[dim])
            if first < last:
                inside = _changed(tuple(0 for _ in box.sizes), dim, first - box.offsets[dim])
                sizes = _changed(box.sizes, dim, last - first)
                yield Box(inside, sizes), _changed(box.offsets, dim, low + first - here)
            here += high - low


def _matrix_of(name: str) -> tuple[str, str]:
    """The module with the matrix that a parameter belongs to, and which factor of its addition it is ("" for its own)."""
    *_, outer, module, _ = ("", "", *name.split("."))
    return (outer, module) if module in (LORA_A, LORA_B) else (module, "")


def equal_part(start: int, size: int, number: int, degree: int) -> tuple[int, int]:
    """One of so many equal parts of a run."""
    each = size // degree
    return start + number * each, start + (number + 1) * each


def _is_of_experts(name: str) -> bool:
    return _matrix_of(name)[0] in EXPERT_MATRICES


def layer_of(name: str) -> int:
    """Of a parameter of a block: "layers.3.expert_down.weight" is of layer 3."""
    _, layer, _ = name.split(".", 2)
    return int(layer)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and length of every run of numbers that follow each other."""
    begins = [at for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1] + 1]
    for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
        yield begin, end - begin


def _changed(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])
