"""Four tasks of three functions: a byte language model, MAML on sines, a walker that learns by policy gradient, and a decoder
cut over devices by tensor rules.

Shapes: B samples, T tasks, P points of a task, G cells of the walker's field, N parameters, U hidden units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.systems.architecture.shallow_again.branch_layer import BranchTraining
from meshwright.systems.architecture.shallow_again.study import network_loss
from meshwright.systems.byte_corpus import byte_corpus
from meshwright.systems.planning.redco import named_models
from meshwright.systems.planning.redco.tensor_rule import tensor_rules
from meshwright.systems.planning.redco.tensor_shard import SUMMED, module_tree, shard
from meshwright.systems.planning.redco.three_function_task import task

Key = tuple[int, int, int]


def _generator(name: str, key: Key) -> torch.Generator:
    return keyed_generator(random_key(name, *key))


@dataclass
class LanguageModel:
    """Reads 16 bytes of the standard library and says the next one."""

    rank: int
    num_ranks: int
    rate: float = 2e-3
    training: BranchTraining = field(default_factory=lambda: BranchTraining(num_layers=2))

    def _sizes(self) -> list[int]:
        kinds = [self.training.kind(stage) for stage in range(self.training.num_layers + 2)]
        return [sum(math.prod(shape) for shape in self.training.shapes(kind)) for kind in kinds]

    def first(self) -> Tensor:
        """Of all layers."""
        return torch.cat(
            [self.training.first(stage, torch.float32) for stage in range(self.training.num_layers + 2)]
        )

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Contexts and the bytes behind them."""
        step, device, microbatch = key
        first = (device * 2 + microbatch) * self.training.batch
        samples = range(first, first + self.training.batch)
        tokens, targets = byte_corpus().batch(0, step, samples, self.training.context)
        return tokens, targets[:, -1]

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Nats of the next byte."""
        return network_loss("deep", self.training, torch.split(parameters_N, self._sizes()), *batch)

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Held-out nats over the entropy of single bytes: below one where more is learned than how frequent bytes are."""
        corpus = byte_corpus()
        batches = corpus.held_out_batches(512, self.training.context, 256)
        losses = [self.loss(parameters_N, (x, y[:, -1])) for x, y in batches]
        return torch.stack(losses).mean() / corpus.unigram_entropy()


@dataclass
class Maml:
    """Sines of any height and phase: parameters from which one step of gradient descent on ten points fits a new one.

    As in Finn, Abbeel and Levine 2017 (arXiv 1703.03400): two layers of 40 units, inner rate 0.01.
    """

    rank: int
    num_ranks: int
    rate: float = 1e-3
    inner_rate: float = 0.01
    num_tasks: int = 25
    num_points: int = 10
    num_units: int = 40

    def _shapes(self) -> list[tuple[int, ...]]:
        u = self.num_units
        return [(u, 1), (u,), (u, u), (u,), (1, u), (1,)]

    def first(self) -> Tensor:
        """Variance one over inputs."""
        generator = keyed_generator(random_key("maml"))
        parts = [
            torch.randn(shape, generator=generator) * (shape[1] ** -0.5 if len(shape) > 1 else 0.0)
            for shape in self._shapes()
        ]
        return torch.cat([part.flatten() for part in parts])

    def _run(self, parameters_N: Tensor, x_P1: Tensor) -> Tensor:
        shapes = self._shapes()
        parts = torch.split(parameters_N, [math.prod(shape) for shape in shapes])
        w1, b1, w2, b2, w3, b3 = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return F.linear(F.relu(F.linear(F.relu(F.linear(x_P1, w1, b1)), w2, b2)), w3, b3)

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Points to adapt on and points to be right on, of every task: x and y, [2, T, P, 1]."""
        generator = _generator("sines", key)
        height = 0.1 + 4.9 * torch.rand(self.num_tasks, 1, 1, generator=generator)
        phase = math.pi * torch.rand(self.num_tasks, 1, 1, generator=generator)
        x = 10 * torch.rand(2, self.num_tasks, self.num_points, 1, generator=generator) - 5
        return x, height * torch.sin(x + phase)

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Mean squared error behind the inner step, differentiated through it."""
        x, y = batch

        def adapted_error(x_2P1: Tensor, y_2P1: Tensor) -> Tensor:
            def error(own_N: Tensor, place: int) -> Tensor:
                return ((self._run(own_N, x_2P1[place]) - y_2P1[place]) ** 2).mean()

            gradient_N = torch.func.grad(error)(parameters_N, 0)
            return error(parameters_N - self.inner_rate * gradient_N, 1)

        return torch.func.vmap(adapted_error)(x.transpose(0, 1), y.transpose(0, 1)).mean()

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Error behind the inner step on new tasks, over that of the first parameters."""
        held_out = [self.data((-1, 0, number), parameters_N) for number in range(8)]
        ours, first = (
            torch.stack([self.loss(p, batch) for batch in held_out]).mean()
            for p in (parameters_N, self.first())
        )
        return (ours / first).detach()


@dataclass
class Walker:
    """A field of 5 x 5 cells, the goal in one corner: REINFORCE with the mean return as baseline, one table of preferences.

    A walk ends at the goal with 1, discounted by 0.9 a step, or after 16 steps with nothing.
    """

    rank: int
    num_ranks: int
    rate: float = 0.05
    side: int = 5
    num_walks: int = 64
    num_steps: int = 16
    discount: float = 0.9

    def first(self) -> Tensor:
        """All four ways alike in every cell."""
        return torch.zeros(self.side**2 * 4)

    def _move(self, cell_B: Tensor, way_B: Tensor) -> Tensor:
        """One step right, left, down or up; walls stop it."""
        row, column = cell_B // self.side, cell_B % self.side
        row = (row + (way_B == 2).long() - (way_B == 3).long()).clamp(0, self.side - 1)
        column = (column + (way_B == 0).long() - (way_B == 1).long()).clamp(0, self.side - 1)
        return row * self.side + column

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Walks of the policy as it is: cells and ways [steps, B], which of them count, and the return from each on."""
        generator, goal = _generator("walks", key), self.side**2 - 1
        chance_G4 = parameters_N.view(-1, 4).softmax(-1)
        cell = torch.randint(goal, (self.num_walks,), generator=generator)
        cells, ways, counts, rewards = [], [], [], []
        is_going = torch.ones(self.num_walks, dtype=torch.bool)
        for _ in range(self.num_steps):
            way = torch.multinomial(chance_G4[cell], 1, generator=generator)[:, 0]
            following = self._move(cell, way)
            cells.append(cell)
            ways.append(way)
            counts.append(is_going)
            rewards.append((is_going & (following == goal)).float())
            is_going = is_going & (following != goal)
            cell = following
        later, returns = torch.zeros(self.num_walks), []
        for reward in reversed(rewards):
            later = self.discount * later + reward
            returns.append(later)
        return torch.stack(cells), torch.stack(ways), torch.stack(counts), torch.stack(returns[::-1])

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Minus the advantage times the log chance of what was done."""
        cell, way, counts, later = cast("tuple[Tensor, Tensor, Tensor, Tensor]", batch)
        log_chance = parameters_N.view(-1, 4).log_softmax(-1)[cell, way]
        advantage = later - later[counts].mean()
        return -(advantage * log_chance)[counts].sum() / self.num_walks

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Mean discounted return over all cells, always the likeliest way, as a share of the best one."""
        goal = self.side**2 - 1
        start = torch.arange(goal)
        best = self.discount ** (2 * (self.side - 1) - start // self.side - start % self.side - 1.0)
        cell, found = start, torch.zeros(goal)
        ways = parameters_N.view(-1, 4).argmax(-1)
        for step in range(self.num_steps):
            following = self._move(cell, ways[cell])
            arrives = (following == goal) & (cell != goal)
            found += arrives * self.discount**step
            cell = torch.where(cell == goal, cell, following)
        return found.mean() / best.mean()


@cache
def decoder(model: str, rank: int, num_ranks: int) -> nn.Module:
    """A device's part of one of `named_models.MODELS`; everything is cut, however small. Whole on one device."""
    whole = named_models.build(model)
    if num_ranks == 1:
        return whole
    rules = tensor_rules(module_tree(whole), num_ranks, named_models.HEAD_DIM, least_bytes=0)
    return shard(whole, rules, rank, num_ranks)


@dataclass
class Decoder:
    """A small decoder with names of public ones, cut over all devices; nothing in the three functions says so."""

    rank: int
    num_ranks: int
    model: str
    rate: float = 1e-2

    def _split(self, parameters_N: Tensor) -> dict[str, Tensor]:
        named = dict(decoder(self.model, self.rank, self.num_ranks).named_parameters())
        parts = torch.split(parameters_N, [p.numel() for p in named.values()])
        return {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}

    def first(self) -> Tensor:
        """This device's parts."""
        parts = decoder(self.model, self.rank, self.num_ranks).parameters()
        return torch.cat([part.detach().flatten() for part in parts])

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Random tokens, the same on all devices."""
        shape = (4, named_models.POSITIONS + 1)
        return torch.randint(named_models.VOCABULARY_SIZE, shape, generator=_generator("tokens", key))

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Mean nats of the next token. The all-reduces of the last forward are counted."""
        SUMMED.clear()
        model = decoder(self.model, self.rank, self.num_ranks)
        logits = torch.func.functional_call(model, self._split(parameters_N), (batch[:, :-1],))
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Forward all-reduces of every block in the last loss."""
        prefix = "h" if self.model == "gpt2" else "layers"
        counts = [
            sum(count for path, count in SUMMED.items() if path.startswith(f"{prefix}.{block}."))
            for block in range(named_models.NUM_LAYERS)
        ]
        return torch.tensor(counts, dtype=torch.float64)


for _name, _make in (
    *(("language model", LanguageModel), ("maml", Maml), ("policy gradient", Walker)),
    ("decoder", Decoder),
):
    task(_name)(_make)
