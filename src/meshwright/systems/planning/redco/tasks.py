"""Tasks of three functions: a user's file, a model of bytes, sines learned by MAML, a walk learned by its return.

Shapes: B samples, S tokens, T tasks, P points of a task, G cells of the walker's field, N parameters.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.specs.error import SpecError

CONTEXT = 16  # bytes that the language model reads
Key = tuple[int, int, int]


def drawn(model: nn.Module, *key: str) -> nn.Module:
    """The model in place with numbers from a key and their names: norms near one, biases near zero, the rest normal."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            generator = keyed_generator(random_key("named", *key, path))
            numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_norm = parameter.dim() == 1 and not path.endswith("bias")
            parameter.copy_(
                is_norm + numbers * (0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
            )
    return model


def flat(model: nn.Module) -> Tensor:
    """parameters_N of a model."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def called(model: nn.Module, parameters_N: Tensor, *inputs: Any) -> Tensor:
    """What a model gives with such parameters."""
    named = dict(model.named_parameters())
    parts = torch.split(parameters_N, [p.numel() for p in named.values()])
    views = {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}
    return torch.func.functional_call(model, views, inputs)  # type: ignore[no-any-return]


@cache
def byte_network() -> nn.Module:
    """Logits of the byte behind 16."""
    sizes = (CONTEXT * 16, 64, 128, NUM_BYTE_VALUES)
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.GELU())]
    return drawn(nn.Sequential(nn.Embedding(NUM_BYTE_VALUES, 16), nn.Flatten(), *layers[:-1]), "bytes")


@cache
def sine_network() -> nn.Module:
    """A number of a number, by two layers of 40 units."""
    return drawn(
        nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)), "sines"
    )


def key_generator(name: str, key: Key) -> torch.Generator:
    """Of a step, device and microbatch."""
    return keyed_generator(random_key(name, *key))


class _Bound(nn.Module):
    """A function of a model and a batch, as a module of the batch."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, batch: Any) -> Tensor:
        """Of the model as it is."""
        return self.function(self.model, batch)


NEEDED = ("model", "examples", "collate", "loss", "predict")


class UserFunctions:
    """A file with model() and examples(), and three functions: collate(examples), loss(model, batch), predict(model,
    batch). Batches are drawn by step, device and microbatch; what is predicted is of the first examples.

    Raises SpecError where the file lacks one of them.
    """

    def __init__(self, file: str, rank: int, num_ranks: int, rate: float = 1e-3, batch: int = 16) -> None:
        self.rate, self.batch, self.name = rate, batch, Path(file).stem
        found = runpy.run_path(file)
        if missing := [name for name in NEEDED if not callable(found.get(name))]:
            raise SpecError(f"{file} has no function {', '.join(missing)}", allowed=", ".join(NEEDED))
        self.collate, self.examples = found["collate"], found["examples"]()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # all devices begin alike
            model = found["model"]()
        self.losses, self.predictions = _Bound(model, found["loss"]), _Bound(model, found["predict"])

    def first(self) -> Tensor:
        """Of the user's model."""
        return flat(self.losses)

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Some examples, collated."""
        rows = torch.randint(len(self.examples), (self.batch,), generator=key_generator(self.name, key))
        return self.collate([self.examples[row] for row in rows.tolist()])

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """As the user says."""
        return called(self.losses, parameters_N, batch)

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Of the first examples."""
        return called(self.predictions, parameters_N, self.collate(self.examples[: self.batch]))


@dataclass
class LanguageModel:
    """Reads 16 bytes of the standard library and says the next one."""

    rank: int
    num_ranks: int
    rate: float = 2e-3
    batch: int = 64

    def first(self) -> Tensor:
        """Of all layers."""
        return flat(byte_network())

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Contexts and the bytes behind them."""
        step, device, microbatch = key
        first = (device * 2 + microbatch) * self.batch
        tokens, targets = Corpus.standard_library().batch(0, step, range(first, first + self.batch), CONTEXT)
        return tokens, targets[:, -1]

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Nats of the next byte."""
        return F.cross_entropy(called(byte_network(), parameters_N, batch[0]), batch[1])

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Held-out nats over the entropy of single bytes: below one where more is learned than how frequent bytes are."""
        corpus = Corpus.standard_library()
        losses = [
            self.loss(parameters_N, (x, y[:, -1])) for x, y in corpus.held_out_batches(512, CONTEXT, 256)
        ]
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

    def first(self) -> Tensor:
        """Of the network."""
        return flat(sine_network())

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Points to adapt on and points to be right on, of every task: x and y, [2, T, P, 1]."""
        generator = key_generator("sines", key)
        height = 0.1 + 4.9 * torch.rand(self.num_tasks, 1, 1, generator=generator)
        phase = math.pi * torch.rand(self.num_tasks, 1, 1, generator=generator)
        x = 10 * torch.rand(2, self.num_tasks, self.num_points, 1, generator=generator) - 5
        return x, height * torch.sin(x + phase)

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Mean squared error behind the inner step, differentiated through it."""
        x, y = batch
        network = sine_network()

        def adapted_error(x_2P1: Tensor, y_2P1: Tensor) -> Tensor:
            def error(own_N: Tensor, place: int) -> Tensor:
                return ((called(network, own_N, x_2P1[place]) - y_2P1[place]) ** 2).mean()

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
        generator, goal = key_generator("walks", key), self.side**2 - 1
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
