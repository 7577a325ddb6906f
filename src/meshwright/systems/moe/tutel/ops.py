"""Handlers of a small vision model whose layer of experts is divided by another r in each step.

`options` of the job: the fields of `VisionShape`, and `shared`: r of every step. Images are drawn: a bright bar in one of
four places is what they show. The model: patches, a linear layer each and a position; a layer of experts, the best by a
softmax, on the residual stream; the mean of patches, and a linear layer to classes. Loss: cross entropy, mean over images of
all ranks.

Shapes: T images of a rank, P patches of one, D numbers of a patch, N = T P rows, E hidden units, I inner units, X experts,
C classes, W ranks. An expert's inner units lie in S = W / X parts, part s of expert x on rank x S + s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import all_to_all, exchange_counts
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.systems.moe.tutel.vision_rows import (
    BACKWARD,
    COUNTS,
    EXCHANGES,
    FORWARD,
    HEAD,
    MAKE,
    PATCH_BACKWARD,
    ROUTE,
    SHARE,
    STEP,
)

RATE = 0.5  # of gradient descent
SIDE, PATCH, CLASSES = 8, 4, 4  # pixels of an image's side and of a patch's; what images show
PATCHES, NUMBERS = (SIDE // PATCH) ** 2, PATCH**2
NOISE, BRIGHT = 0.5, 2.0


@dataclass(frozen=True)
class VisionShape:
    """``images``: of every rank in a step."""

    ranks: int = 4
    experts: int = 2
    hidden: int = 8
    inner: int = 16
    images: int = 6
    seed: int = 0

    @property
    def num_parts(self) -> int:
        """S."""
        return self.ranks // self.experts

    @property
    def part_numbers(self) -> int:
        """Of a rank's part: rows of the first matrix, columns of the second."""
        return 2 * self.hidden * self.inner // self.num_parts

    @property
    def dense_sizes(self) -> tuple[tuple[int, int], ...]:
        """Of patches, positions, router and head."""
        return (
            (self.hidden, NUMBERS),
            (PATCHES, self.hidden),
            (self.experts, self.hidden),
            (CLASSES, self.hidden),
        )


class ExpertSharing(NamedTuple):
    """Who computes with what: r, and how many ranks gather each other's parts. r = 0: everybody gathers all."""

    shape: VisionShape
    shared: int

    @property
    def num_gathered(self) -> int:
        """Parts that a rank computes with."""
        return self.shape.num_parts // self.shared if self.shared else self.shape.ranks

    def gatherers(self, rank: int) -> range:
        """Who computes with this rank's part."""
        first = rank // self.num_gathered * self.num_gathered
        return range(first, first + self.num_gathered)

    def targets(self, rank: int, expert: int) -> list[int]:
        """Whom a rank sends the patches of an expert to: one of each group that has all its parts together."""
        if not self.shared:
            return [rank]
        first, each = expert * self.shape.num_parts, self.num_gathered
        return [first + group * each + rank % each for group in range(self.shared)]


class RoutedPatches(NamedTuple):
    """Of a rank: hidden rows [N, E], gates [N], experts [N], and for each row that is sent its number, sorted by target."""

    x_NE: Tensor
    gate_N: Tensor
    expert_N: Tensor
    sent: Tensor
    counts_W: Tensor


def _drawn(shape: VisionShape, *key: object, size: tuple[int, ...]) -> Tensor:
    generator = keyed_generator(random_key(shape.seed, *map(str, key)))
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def images_of(shape: VisionShape, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Patches [T, P, D], and classes [T]: in which patch the bar is."""
    pixels = NOISE * _drawn(shape, "pixels", step, rank, size=(shape.images, PATCHES, NUMBERS))
    classes_T = (torch.arange(shape.images) + step + rank) % CLASSES
    pixels[torch.arange(shape.images), classes_T, : NUMBERS // 2] += BRIGHT
    return pixels, classes_T


def first_dense(shape: VisionShape) -> Tensor:
    """All parameters that every rank has, flat."""
    drawn = [_drawn(shape, "dense", at, size=size) for at, size in enumerate(shape.dense_sizes)]
    return torch.cat([(each / each.shape[1] ** 0.5).flatten() for each in drawn])


def first_part(shape: VisionShape, rank: int) -> Tensor:
    """Flat: rows of the first matrix, then columns of the second one, transposed."""
    drawn: Tensor = _drawn(shape, "part", rank, size=(shape.part_numbers,)) / shape.hidden**0.5
    return drawn


def dense_of(shape: VisionShape, flat: Tensor) -> list[Tensor]:
    """Patches [E, D], positions [P, E], router [X, E], head [C, E]."""
    numbers = [rows * columns for rows, columns in shape.dense_sizes]
    return [each.view(size) for each, size in zip(torch.split(flat, numbers), shape.dense_sizes, strict=True)]


def embedded(patches_TPD: Tensor, dense: Sequence[Tensor]) -> Tensor:
    """[N, E]."""
    return (F.linear(patches_TPD, dense[0]) + dense[1]).flatten(0, 1)


def gates_of(x_NE: Tensor, router_XE: Tensor) -> tuple[Tensor, Tensor]:
    """[N] of the best expert each, and which it is."""
    best = F.linear(x_NE, router_XE).softmax(1).max(1)
    return best.values, best.indices


def image_loss(y_NE: Tensor, classes_T: Tensor, head_CE: Tensor, num_images: int) -> Tensor:
    """Sum over these images, over the number of all."""
    pooled_TE = y_NE.view(len(classes_T), PATCHES, -1).mean(1)
    return F.cross_entropy(F.linear(pooled_TE, head_CE), classes_T, reduction="sum") / num_images


def part_of(x_NE: Tensor, part: Tensor) -> Tensor:
    """What one part of an expert's inner units adds: [N, E]; parts of an expert add up to it."""
    up_IE, down_IE = part.view(2, -1, x_NE.shape[1])
    added_NE: Tensor = F.gelu(F.linear(x_NE, up_IE)) @ down_IE
    return added_NE


def _place(context: Context, row: Row) -> tuple[VisionShape, ExpertSharing]:
    shape = VisionShape(**context.options["shape"])
    step = min(row.part, len(context.options["shared"]) - 1)
    return shape, ExpertSharing(shape, context.options["shared"][step])


def _routed(context: Context, row: Row, flat: Tensor) -> tuple[RoutedPatches, Tensor, list[Tensor]]:
    shape, division = _place(context, row)
    patches_TPD, classes_T = images_of(shape, row.part, context.rank)
    dense = dense_of(shape, flat)
    x_NE = embedded(patches_TPD, dense)
    gate_N, expert_N = gates_of(x_NE, dense[2])
    pairs = [
        (target, number)
        for number, expert in enumerate(expert_N.tolist())
        for target in division.targets(context.rank, expert)
    ]
    pairs.sort()
    targets = torch.tensor([target for target, _ in pairs])
    sent, counts_W = (
        torch.tensor([number for _, number in pairs]),
        torch.bincount(targets, minlength=shape.ranks),
    )
    return RoutedPatches(x_NE, gate_N, expert_N, sent, counts_W), classes_T, dense


def make_vision(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """This rank's part, and what every rank has."""
    shape, _ = _place(context, row)
    return first_part(shape, context.rank), first_dense(shape)


def share_part(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The part once for each who gathers it, and how many go to each rank."""
    shape, division = _place(context, row)
    to_W = torch.zeros(shape.ranks, dtype=torch.int64)
    to_W[list(division.gatherers(context.rank))] = 1
    return inputs[0].repeat(division.num_gathered, 1), to_W


def route_patches(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Rows of an expert's number and the hidden units, sorted by target."""
    routed, _, _ = _routed(context, row, inputs[0])
    rows = torch.cat([routed.expert_N[:, None].to(routed.x_NE.dtype), routed.x_NE], 1)
    return rows[routed.sent], routed.counts_W


def _computed(
    shape: VisionShape, division: ExpertSharing, rank: int, rows: Tensor, parts: Sequence[Tensor]
) -> Tensor:
    """Every row by all parts of its expert that are here."""
    expert_N, x_NE = rows[:, 0].long(), rows[:, 1:]
    y_NE = torch.zeros_like(x_NE)
    for owner, part in zip(division.gatherers(rank), parts, strict=True):
        is_own_N = (expert_N == owner // shape.num_parts)[:, None]
        y_NE = y_NE + torch.where(is_own_N, part_of(x_NE, part), 0.0)
    return y_NE


def patch_experts(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Results of the rows that came, in their order."""
    shape, division = _place(context, row)
    return (_computed(shape, division, context.rank, inputs[0], list(inputs[1])),)


def image_head(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The loss; gradients of results, for all who made them; and of dense parameters, but for what comes through experts."""
    shape, _ = _place(context, row)
    with torch.enable_grad():
        flat = inputs[0].detach().clone().requires_grad_()
        routed, classes_T, dense = _routed(context, row, flat)
        added_NE = (
            torch.zeros_like(routed.x_NE).index_add(0, routed.sent, inputs[1]).detach().requires_grad_()
        )
        y_NE = routed.x_NE + routed.gate_N[:, None] * added_NE
        loss = image_loss(y_NE, classes_T, dense[3], shape.images * shape.ranks)
        torch.autograd.backward(loss)
    assert flat.grad is not None and added_NE.grad is not None
    return loss.detach().reshape(1), added_NE.grad[routed.sent], flat.grad


def patch_experts_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of the rows that came, and of every part that is here."""
    shape, division = _place(context, row)
    rows, gradients_NE, gathered = inputs
    with torch.enable_grad():
        parts = [part.detach().clone().requires_grad_() for part in gathered]
        rows = rows.detach().clone().requires_grad_()
        torch.autograd.backward(_computed(shape, division, context.rank, rows, parts), gradients_NE)
    assert rows.grad is not None
    return rows.grad[:, 1:].contiguous(), torch.stack([part.grad for part in parts if part.grad is not None])


def patches_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """All of this rank's gradient of dense parameters, once for each rank."""
    shape, _ = _place(context, row)
    with torch.enable_grad():
        flat = inputs[0].detach().clone().requires_grad_()
        routed, _, _ = _routed(context, row, flat)
        gradient_NE = torch.zeros_like(routed.x_NE).index_add(0, routed.sent, inputs[1])
        torch.autograd.backward(routed.x_NE, gradient_NE)
    assert flat.grad is not None
    return (flat.grad + inputs[2]).repeat(shape.ranks, 1), torch.ones(shape.ranks, dtype=torch.int64)


def vision_step(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of the part and of dense parameters, and both behind a step of gradient descent."""
    part, came, flat, dense_came = inputs
    gradient, dense_gradient = came.sum(0), dense_came.sum(0)
    return gradient, dense_gradient, part - RATE * gradient, flat - RATE * dense_gradient


HANDLERS: Handlers = {
    MAKE.name: make_vision,
    SHARE.name: share_part,
    ROUTE.name: route_patches,
    FORWARD.name: patch_experts,
    HEAD.name: image_head,
    BACKWARD.name: patch_experts_backward,
    PATCH_BACKWARD.name: patches_backward,
    STEP.name: vision_step,
    **{effect.name: exchange_counts for effect in COUNTS},
    **{effect.name: all_to_all for effect in EXCHANGES},
}
