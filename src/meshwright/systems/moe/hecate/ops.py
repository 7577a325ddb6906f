"""Handlers of steps of a layer of experts with copies. Loss: half the mean square of the layer's outputs less targets.

`options` of the job: the fields of `LayerShape`, and `steps`: for each its moves [expert, owner, target], and `owners`.
An owner has of each expert its matrices and Adam's two moments, [3, numbers of an expert]; a copy has matrices only.

Shapes: T tokens of a rank, E hidden units, I inner units, K experts a token, N rows, X experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.systems.moe.hecate.mechanism import Move
from meshwright.systems.moe.hecate.rows import (
    BACKWARD,
    COMBINE,
    CUT,
    DISPATCH,
    FORWARD,
    MAKE,
    STEP,
)

RATE, BETAS, EPSILON = 1e-2, (0.9, 0.999), 1e-8
SKEW = 1.5  # standard deviation of what is added to the router's logits of each expert, so that some are busy


@dataclass(frozen=True)
class LayerShape:
    """``tokens``: of every rank in a step."""

    experts: int = 8
    per_token: int = 2
    hidden: int = 6
    inner: int = 5
    tokens: int = 12
    seed: int = 0

    @property
    def expert_numbers(self) -> int:
        """Of gate, up and down."""
        return 3 * self.hidden * self.inner


class ExpertBatch(NamedTuple):
    """Of a rank in a step: inputs and targets [T, E], gates and experts [T, K]."""

    x_TE: Tensor
    target_TE: Tensor
    gates_TK: Tensor
    experts_TK: Tensor


def batch_of(shape: LayerShape, step: int, rank: int) -> ExpertBatch:
    """Drawn by both; the router is the same on all ranks and does not train."""

    def draw(*key: object, size: tuple[int, ...]) -> Tensor:
        generator = keyed_generator(random_key(shape.seed, *map(str, key)))
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    x_TE = draw("x", step, rank, size=(shape.tokens, shape.hidden))
    logits = x_TE @ draw("router", size=(shape.hidden, shape.experts))
    logits = logits + SKEW * draw("skew", step, size=(shape.experts,))
    gates_TK, experts_TK = logits.softmax(1).topk(shape.per_token, 1)
    return ExpertBatch(x_TE, draw("y", step, rank, size=(shape.tokens, shape.hidden)), gates_TK, experts_TK)


def first_expert(shape: LayerShape, expert: int) -> Tensor:
    """Flat: gate and up, then down."""
    generator = keyed_generator(random_key(shape.seed, "expert", str(expert)))
    drawn = torch.randn(shape.expert_numbers, generator=generator, dtype=torch.float64)
    drawn /= float(shape.hidden) ** 0.5
    return drawn


def expert_of(shape: LayerShape, flat: Tensor, rows_NE: Tensor) -> Tensor:
    """A gated MLP: [N, E] -> [N, E]."""
    split = 2 * shape.hidden * shape.inner
    inner = gated_silu(rows_NE @ flat[:split].view(2 * shape.inner, shape.hidden).t())
    return inner @ flat[split:].view(shape.hidden, shape.inner).t()


def adam(state_3F: Tensor, gradient_F: Tensor, step: int) -> Tensor:
    """Parameters and moments behind a step (Kingma and Ba 2015, arXiv 1412.6980); steps from 1."""
    value, first, second = state_3F
    first = BETAS[0] * first + (1 - BETAS[0]) * gradient_F
    second = BETAS[1] * second + (1 - BETAS[1]) * gradient_F**2
    scaled = first / (1 - BETAS[0] ** step)
    root = (second / (1 - BETAS[1] ** step)).sqrt()
    return torch.stack([value - RATE * scaled / (root + EPSILON), first, second])


class ExpertStepPlace:
    """What a rank knows of a step: whose expert is where, and which rows of each rank go to which of them."""

    def __init__(self, context: Any, row: Row, step: int) -> None:
        options = context.options
        self.shape, self.step, self.rank = LayerShape(**options["shape"]), step, context.rank
        self.owners: list[int] = options["owners"]
        self.moves = [Move(*move) for move in options["steps"][step]]
        self.num_ranks = options["ranks"]
        self.first_move = sum(len(moves) for moves in options["steps"][:step])

    @property
    def own(self) -> list[int]:
        """Experts that this rank owns."""
        return [expert for expert, owner in enumerate(self.owners) if owner == self.rank]

    @property
    def copied(self) -> list[int]:
        """Experts that have come here, in the order of moves."""
        return [move.expert for move in self.moves if move.target == self.rank]

    def holders(self, expert: int) -> list[int]:
        """Ranks that have it, its owner first."""
        return [self.owners[expert], *(move.target for move in self.moves if move.expert == expert)]

    def places(self, batch: ExpertBatch, source: int, target: int) -> Iterator[tuple[int, Tensor]]:
        """Every expert of a rank with the places of its rows from another one, in `experts_TK` read row by row.

        A rank with a copy keeps its rows; else they go in turn to all who have one.
        """
        flat = batch.experts_TK.reshape(-1)
        for expert in range(self.shape.experts):
            rows, holders = (flat == expert).nonzero()[:, 0], self.holders(expert)
            if source in holders:
                rows = rows if source == target else rows[:0]
            else:
                rows = rows[holders.index(target) :: len(holders)] if target in holders else rows[:0]
            if len(rows):
                yield expert, rows

    def batch(self, rank: int) -> ExpertBatch:
        """Of a rank; only its own inputs are used, of others who is sent where, as a counts exchange would say."""
        return batch_of(self.shape, self.step, rank)

    def number_of(self, rank: int) -> list[tuple[int, int]]:
        """Experts and numbers of rows that come from a rank."""
        return [(expert, len(rows)) for expert, rows in self.places(self.batch(rank), rank, self.rank)]


def make_experts(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """[own experts, 3, numbers]."""
    place = ExpertStepPlace(context, row, 0)
    values = [first_expert(place.shape, expert) for expert in place.own]
    states = [torch.stack([value, torch.zeros_like(value), torch.zeros_like(value)]) for value in values]
    return (torch.stack(states),)


def cut_expert(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Matrices of an expert, without moments."""
    steps = context.options["steps"]
    step, number = 0, row.part
    while number >= len(steps[step]):
        number -= len(steps[step])
        step += 1
    place = ExpertStepPlace(context, row, step)
    return (inputs[0][place.own.index(place.moves[number].expert), 0].clone(),)


def dispatch_rows(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Rows for every rank, by expert."""
    place = ExpertStepPlace(context, row, row.part)
    batch = place.batch(place.rank)
    return [_rows(batch.x_TE, batch, place, target) for target in range(place.num_ranks)]


def _rows(values_TE: Tensor, batch: ExpertBatch, place: ExpertStepPlace, target: int) -> Tensor:
    found = [rows for _, rows in place.places(batch, place.rank, target)]
    tokens = torch.cat(found) // place.shape.per_token if found else torch.empty(0, dtype=torch.int64)
    return values_TE[tokens]


def _parameters(place: ExpertStepPlace, inputs: Sequence[Any]) -> tuple[dict[int, Tensor], Sequence[Tensor]]:
    """By expert those here, and the rows of every rank."""
    owned, num = inputs[0], len(place.copied)
    here = {expert: owned[at, 0] for at, expert in enumerate(place.own)}
    here |= dict(zip(place.copied, inputs[1 : 1 + num], strict=True))
    return here, inputs[1 + num : 1 + num + place.num_ranks]


def _results(place: ExpertStepPlace, here: dict[int, Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
    """[N, E] for every rank."""
    found = []
    for rank, rows_NE in enumerate(rows):
        counts = place.number_of(rank)
        parts = torch.split(rows_NE, [count for _, count in counts]) if counts else ()
        outputs = [
            expert_of(place.shape, here[expert], part)
            for (expert, _), part in zip(counts, parts, strict=True)
        ]
        found.append(torch.cat(outputs) if outputs else rows_NE)
    return found


def experts_forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Results of the rows of every rank."""
    place = ExpertStepPlace(context, row, row.part)
    return _results(place, *_parameters(place, inputs))


def combine_rows(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """This rank's part of the loss, and the gradients of its results, for those who made them."""
    place = ExpertStepPlace(context, row, row.part)
    batch, shape = place.batch(place.rank), place.shape
    each_NE = batch.x_TE.new_zeros(shape.tokens * shape.per_token, shape.hidden)
    for target, results_NE in enumerate(inputs):
        found = [rows for _, rows in place.places(batch, place.rank, target)]
        if found:
            each_NE[torch.cat(found)] = results_NE
    each_TKE = each_NE.view(shape.tokens, shape.per_token, -1) * batch.gates_TK[..., None]
    less_TE = (each_TKE.sum(1) - batch.target_TE) / (shape.tokens * place.num_ranks)
    loss = 0.5 * (less_TE**2).sum() * shape.tokens * place.num_ranks
    dresults_NE = (less_TE[:, None] * batch.gates_TK[..., None]).view(-1, shape.hidden)
    found = []
    for target in range(place.num_ranks):
        rows = [rows for _, rows in place.places(batch, place.rank, target)]
        found.append(dresults_NE[torch.cat(rows)] if rows else dresults_NE[:0])
    return (loss.reshape(1), *found)


def experts_backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of own experts [own experts, numbers], and of each copy: zeros of one to which no token came."""
    place = ExpertStepPlace(context, row, row.part)
    with torch.enable_grad():
        here, rows = _parameters(place, inputs)
        here = {expert: value.detach().clone().requires_grad_() for expert, value in here.items()}
        results = _results(place, here, rows)
        used = [(y, dy) for y, dy in zip(results, inputs[-place.num_ranks :], strict=True) if len(y)]
        if used:
            torch.autograd.backward([y for y, _ in used], [dy for _, dy in used])
    gradients = {
        expert: torch.zeros_like(value) if value.grad is None else value.grad
        for expert, value in here.items()
    }
    return (torch.stack([gradients[each] for each in place.own]), *(gradients[each] for each in place.copied))


def experts_step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Every copy's gradient joins its owner's, in the order of moves; then one step of Adam."""
    place = ExpertStepPlace(context, row, row.part)
    owned, gradients, *home = inputs
    total = gradients.clone()
    came = [move.expert for move in place.moves if move.owner == place.rank]
    for expert, gradient in zip(came, home, strict=True):
        total[place.own.index(expert)] += gradient
    states = [adam(state, gradient, row.part + 1) for state, gradient in zip(owned, total, strict=True)]
    return torch.stack(states), total


HANDLERS: Handlers = {
    MAKE.name: make_experts,
    CUT.name: cut_expert,
    DISPATCH.name: dispatch_rows,
    FORWARD.name: experts_forward,
    COMBINE.name: combine_rows,
    BACKWARD.name: experts_backward,
    STEP.name: experts_step,
}
