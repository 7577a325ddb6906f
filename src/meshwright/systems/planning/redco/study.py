"""Redco on this machine: a decoder cut by rules beside the whole one, all-reduces counted, three tasks of three functions.

Shapes: B samples, S tokens, E width, V vocabulary, T tasks, P points of a task, G cells of the walker's field, N parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor import run_program
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.error import UnknownNameError
from meshwright.systems.planning.redco.mechanism import PREDICTION, USER_LOSS, tensor_rules, three_functions
from meshwright.systems.planning.redco.ops import (
    SUMMED,
    TASKS,
    HeadPlace,
    InOutLinear,
    cut,
    make_task,
    module_tree,
    shard,
)


class Gpt2Attention(HeadPlace):
    """One layer for queries, keys and values."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__(head_dim, 1)
        self.c_attn, self.c_proj = InOutLinear(width, 3 * width), InOutLinear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        q, k, v = self.c_attn(x).chunk(3, -1)
        return self.c_proj(self.mix(q, k, v))  # type: ignore[no-any-return]


class Gpt2Mlp(nn.Module):
    """c_fc, GELU, c_proj."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = InOutLinear(width, 4 * width), InOutLinear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.c_proj(F.gelu(self.c_fc(x)))  # type: ignore[no-any-return]


class Gpt2Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Gpt2Attention(width, head_dim)
        self.ln_2, self.mlp = nn.LayerNorm(width), Gpt2Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind both."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """Logits [B, S, V]; the head is the table of words."""

    def __init__(
        self, num_layers: int, width: int, head_dim: int, vocabulary_size: int, positions: int
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary_size, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(Gpt2Block(width, head_dim) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Of tokens from position 0 on."""
        x = self.wte(tokens_BS) + self.wpe(torch.arange(tokens_BS.shape[1]))
        for block in self.h:
            x = block(x)
        return logits_of(self.wte, self.ln_f(x))


def logits_of(table: nn.Module, x_BSE: Tensor) -> Tensor:
    """Logits by a tied table: by its own method where it has one (a table that is cut), else by its weight."""
    if isinstance(table, nn.Embedding):
        return x_BSE @ table.weight.T
    return table.logits(x_BSE)  # type: ignore[operator, no-any-return]


class LlamaAttention(HeadPlace):
    """Grouped queries, no biases."""

    def __init__(self, width: int, head_dim: int, num_kv_heads: int) -> None:
        super().__init__(head_dim, width // head_dim // num_kv_heads)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.o_proj(self.mix(self.q_proj(x), self.k_proj(x), self.v_proj(x)))  # type: ignore[no-any-return]


class LlamaMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, num_units: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, num_units, bias=False)
        self.up_proj = nn.Linear(width, num_units, bias=False)
        self.down_proj = nn.Linear(num_units, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, head_dim: int, num_kv_heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn = LlamaAttention(width, head_dim, num_kv_heads)
        self.mlp = LlamaMlp(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind both."""
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Logits [B, S, V], with a head of its own; without positions, which cut nothing."""

    def __init__(
        self, num_layers: int, width: int, head_dim: int, vocabulary_size: int, num_kv_heads: int
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary_size, width)
        self.layers = nn.ModuleList(LlamaBlock(width, head_dim, num_kv_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary_size, bias=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Of any tokens."""
        x = self.embed_tokens(tokens_BS)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))  # type: ignore[no-any-return]


NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, POSITIONS = 2, 32, 8, 101, 16  # an odd vocabulary has padding
MODELS = ("gpt2", "llama", "llama_one_kv_head")
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


def build(name: str) -> nn.Module:
    """One of MODELS in float64, drawn from its name."""
    if name == "gpt2":
        model: nn.Module = Gpt2(NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, POSITIONS)
    else:
        model = Llama(NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, 1 if name == "llama_one_kv_head" else 2)
    return drawn(model.double(), name)


def flat(model: nn.Module) -> Tensor:
    """parameters_N of a model."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def called(model: nn.Module, parameters_N: Tensor, *inputs: Tensor) -> Tensor:
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


def _generator(name: str, key: Key) -> torch.Generator:
    return keyed_generator(random_key(name, *key))


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
        generator = _generator("sines", key)
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
    """A device's part of one of MODELS; everything is cut, however small. Whole on one device."""
    whole = build(model)
    if num_ranks == 1:
        return whole
    return shard(whole, tensor_rules(module_tree(whole), num_ranks, HEAD_DIM, least_bytes=0), rank, num_ranks)


@dataclass
class Decoder:
    """A small decoder with names of public ones, cut over all devices; nothing in the three functions says so."""

    rank: int
    num_ranks: int
    model: str
    rate: float = 1e-2

    def first(self) -> Tensor:
        """This device's parts."""
        return flat(decoder(self.model, self.rank, self.num_ranks))

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Random tokens, the same on all devices."""
        return torch.randint(VOCABULARY_SIZE, (4, POSITIONS + 1), generator=_generator("tokens", key))

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Mean nats of the next token. The all-reduces of the last forward are counted."""
        SUMMED.clear()
        logits = called(decoder(self.model, self.rank, self.num_ranks), parameters_N, batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Forward all-reduces of every block in the last loss."""
        prefix = "h" if self.model == "gpt2" else "layers"
        counts = [
            sum(count for path, count in SUMMED.items() if path.startswith(f"{prefix}.{block}."))
            for block in range(NUM_LAYERS)
        ]
        return torch.tensor(counts, dtype=torch.float64)


TASKS.update({"language model": LanguageModel, "maml": Maml, "policy gradient": Walker, "decoder": Decoder})

NUM_PROCESSES, NUM_CHECKED = 2, 3
# What a task has to reach, and in how many steps: (steps, microbatches, mark, is less better).
MARKS: Mapping[str, tuple[int, int, float, bool]] = {
    "language model": (200, 2, 0.9, True),
    "maml": (800, 1, 0.5, True),
    "policy gradient": (150, 1, 0.95, False),
}


@dataclass(frozen=True, eq=False)
class TaskOutcome:
    """Of every process: loss of the last step (its share), parameters, and what was predicted."""

    losses: tuple[float, ...]
    parameters_N: tuple[Tensor, ...]
    predictions: tuple[Tensor, ...]


def run_task(
    name: str,
    num_steps: int,
    pool: Pool,
    *,
    num_processes: int = NUM_PROCESSES,
    num_microbatches: int = 1,
    is_data_parallel: bool = True,
    dtype: str = "float32",
    **arguments: Any,
) -> TaskOutcome:
    """Steps of a task. `is_data_parallel`: every process has its own batches, and gradients are averaged; else all have the
    same ones and parts of one model."""
    values = []
    for rank in range(num_processes):
        first = make_task(name, rank=rank, num_ranks=num_processes, **arguments).first()
        state = torch.zeros(2, len(first), dtype=first.dtype)
        values.append({ValueName("parameter"): first, ValueName("optimizer_state"): state})
    num_data_parallel = num_processes if is_data_parallel else 1
    options = {
        "task": name,
        "arguments": arguments,
        "num_data_parallel": num_data_parallel,
        "num_microbatches": num_microbatches,
        "predict_every": num_steps,
    }
    result = run_program(
        three_functions(num_data_parallel, num_microbatches, num_processes // num_data_parallel),
        handlers_module=__name__,
        initial_values=values,
        iterations=num_steps,
        keep=("parameter", USER_LOSS.name, PREDICTION.name),
        pool=pool,
        dtype=dtype,
        options=options,
    )
    return TaskOutcome(
        tuple(float(rank[ValueName(USER_LOSS.name)]) for rank in result.values),
        tuple(rank[ValueName("parameter")] for rank in result.values),
        tuple(rank[ValueName(PREDICTION.name)] for rank in result.values),
    )


def _cut_decoder(model: str, num_processes: int, pool: Pool) -> TaskOutcome:
    return run_task(
        "decoder",
        NUM_CHECKED,
        pool,
        num_processes=num_processes,
        is_data_parallel=False,
        dtype="float64",
        model=model,
    )


def loss_difference(model: str, pool: Pool | None = None, num_processes: int = NUM_PROCESSES) -> float:
    """|cut / whole - 1| of the loss in the third step, which two steps of Adam came before."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours, whole = (_cut_decoder(model, count, workers).losses for count in (num_processes, 1))
    return max(abs(loss / whole[0] - 1) for loss in ours)


def parameter_difference(model: str, pool: Pool | None = None, num_processes: int = NUM_PROCESSES) -> float:
    """Largest difference of any parameter behind three steps to the same part of the whole model."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours, alone = (_cut_decoder(model, count, workers) for count in (num_processes, 1))
    whole = build(model)
    torch.nn.utils.vector_to_parameters(alone.parameters_N[0], whole.parameters())
    rules = tensor_rules(module_tree(whole), num_processes, HEAD_DIM, least_bytes=0)
    found = 0.0
    for rank, parameters_N in enumerate(ours.parameters_N):
        parts = [cut(p, rules[name], rank, num_processes).flatten() for name, p in whole.named_parameters()]
        found = max(found, float((torch.cat(parts) - parameters_N).abs().max()))
    return found


def block_all_reduces(model: str, pool: Pool | None = None) -> float:
    """Forward all-reduces of a block on the first process; the most of any block where they differ."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        counts = _cut_decoder(model, NUM_PROCESSES, workers).predictions[0]
    return float(counts.max())


def reached(name: str, pool: Pool | None = None) -> float:
    """What a task predicts of itself behind its steps. Raises UnknownNameError."""
    if name not in MARKS:
        raise UnknownNameError("task with a mark", name, MARKS)
    num_steps, num_microbatches, _, _ = MARKS[name]
    with opened_pool(pool, NUM_PROCESSES) as workers:
        outcome = run_task(name, num_steps, workers, num_microbatches=num_microbatches)
    return float(outcome.predictions[0])


def num_marks_reached(pool: Pool | None = None) -> float:
    """Tasks whose prediction is as good as their mark."""
    found = 0
    with opened_pool(pool, NUM_PROCESSES) as workers:
        for name, (_, _, mark, is_less_better) in MARKS.items():
            value = reached(name, workers)
            found += value <= mark if is_less_better else value >= mark
    return float(found)
