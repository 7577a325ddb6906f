"""Redco on this machine: a decoder cut by rules beside the whole one, all-reduces counted, three tasks of three functions.

Shapes: B samples, S tokens, E width, V vocabulary, N parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.layout.rule_shard import cut
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_tree import module_tree
from meshwright.executor.rank.handler import Handlers, ValueName
from meshwright.ir.vocabulary import Vocabulary
from meshwright.specs.error import UnknownNameError
from meshwright.systems.planning.redco.mechanism import PREDICTION, USER_LOSS, tensor_rules, three_functions
from meshwright.systems.planning.redco.ops import (
    TASKS,
    Conv1D,
    HeadPlace,
    cut_by,
    everyone,
    make_task,
)
from meshwright.systems.planning.redco.tasks import (
    Key,
    LanguageModel,
    Maml,
    UserFunctions,
    Walker,
    called,
    drawn,
    flat,
    key_generator,
)

HEAD = "lm_head"


class Gpt2Attention(HeadPlace):
    """One layer for queries, keys and values."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__(head_dim, 1)
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the normed stream."""
        q, k, v = self.c_attn(x).chunk(3, -1)
        return self.c_proj(self.mix(q, k, v))  # type: ignore[no-any-return]


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


class NamedBlock(nn.ModuleDict):
    """Norm, attention, norm and feed-forward by the names of a public model."""

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind both."""
        first_norm, attention, second_norm, mlp = self.values()
        x = x + attention(first_norm(x))
        return x + mlp(second_norm(x))  # type: ignore[no-any-return]


class NamedDecoder(nn.ModuleDict):
    """Tables of words and, where it has one, of positions; blocks; a norm; a head, without which it is the table of words."""

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Logits [B, S, V] of tokens from position 0 on."""
        table, *positions, blocks, norm = (module for name, module in self.items() if name != HEAD)
        x = table(tokens_BS)
        for position in positions:
            x = x + position(torch.arange(tokens_BS.shape[1]))
        for block in blocks.children():
            x = block(x)
        return self[HEAD](norm(x)) if HEAD in self else logits_of(table, norm(x))


def logits_of(table: nn.Module, x_BSE: Tensor) -> Tensor:
    """Logits by a tied table: by its own method where it has one (a table that is cut), else by its weight."""
    if isinstance(table, nn.Embedding):
        return x_BSE @ table.weight.T
    return table.logits(x_BSE)  # type: ignore[operator, no-any-return]


def gpt2() -> nn.Module:
    """Fused projections, biases, learned positions, a tied head."""

    def block() -> NamedBlock:
        mlp = [
            ("c_fc", Conv1D(WIDTH, 4 * WIDTH)),
            ("gelu", nn.GELU()),
            ("c_proj", Conv1D(4 * WIDTH, WIDTH)),
        ]
        return NamedBlock({
            "ln_1": nn.LayerNorm(WIDTH), "attn": Gpt2Attention(WIDTH, HEAD_DIM),
            "ln_2": nn.LayerNorm(WIDTH), "mlp": nn.Sequential(OrderedDict(mlp)),
        })  # fmt: skip

    tables = {"wte": nn.Embedding(VOCABULARY_SIZE, WIDTH), "wpe": nn.Embedding(POSITIONS, WIDTH)}
    blocks = nn.ModuleList(block() for _ in range(NUM_LAYERS))
    return NamedDecoder({**tables, "h": blocks, "ln_f": nn.LayerNorm(WIDTH)})


def llama(num_kv_heads: int) -> nn.Module:
    """Grouped queries, no biases, a head of its own; without positions, which cut nothing."""

    def block() -> NamedBlock:
        return NamedBlock({
            "input_layernorm": nn.RMSNorm(WIDTH), "self_attn": LlamaAttention(WIDTH, HEAD_DIM, num_kv_heads),
            "post_attention_layernorm": nn.RMSNorm(WIDTH), "mlp": LlamaMlp(WIDTH, 3 * WIDTH),
        })  # fmt: skip

    blocks = nn.ModuleList(block() for _ in range(NUM_LAYERS))
    head = nn.Linear(WIDTH, VOCABULARY_SIZE, bias=False)
    table = nn.Embedding(VOCABULARY_SIZE, WIDTH)
    return NamedDecoder({"embed_tokens": table, "layers": blocks, "norm": nn.RMSNorm(WIDTH), HEAD: head})


NUM_LAYERS, WIDTH, HEAD_DIM, VOCABULARY_SIZE, POSITIONS = 2, 32, 8, 101, 16  # an odd vocabulary has padding
MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": partial(llama, 2),
    "llama_one_kv_head": partial(llama, 1),
}


def build(name: str) -> nn.Module:
    """One of MODELS in float64, drawn from its name."""
    return drawn(MODELS[name]().double(), name)


def decoder(model: str, team: InnerTeam) -> nn.Module:
    """A device's part of one of MODELS; everything is cut, however small. Whole on one device."""
    whole = build(model)
    if team.degree == 1:
        return whole
    return cut_by(whole, tensor_rules(module_tree(whole), team.degree, HEAD_DIM, least_bytes=0), team)


@dataclass
class Decoder:
    """A small decoder with names of public ones, cut over all devices; nothing in the three functions says so."""

    rank: int
    num_ranks: int
    model: str
    rate: float = 1e-2

    def __post_init__(self) -> None:
        self.team = everyone(self.rank, self.num_ranks)
        self.decoder = decoder(self.model, self.team)

    def first(self) -> Tensor:
        """This device's parts."""
        return flat(self.decoder)

    def data(self, key: Key, parameters_N: Tensor) -> Any:
        """Random tokens, the same on all devices."""
        return torch.randint(VOCABULARY_SIZE, (4, POSITIONS + 1), generator=key_generator("tokens", key))

    def loss(self, parameters_N: Tensor, batch: Any) -> Tensor:
        """Mean nats of the next token. The all-reduces of the last forward are counted."""
        self.team.sums.clear()
        logits = called(self.decoder, parameters_N, batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def predict(self, parameters_N: Tensor) -> Tensor:
        """Forward all-reduces of every block in the last loss."""
        prefix = "h" if self.model == "gpt2" else "layers"
        counts = [
            sum(count for path, count in self.team.sums.items() if path.startswith(f"{prefix}.{block}."))
            for block in range(NUM_LAYERS)
        ]
        return torch.tensor(counts, dtype=torch.float64)


FUNCTIONS = "functions of a file"
TASKS.update(
    {
        FUNCTIONS: UserFunctions,
        "language model": LanguageModel,
        "maml": Maml,
        "policy gradient": Walker,
        "decoder": Decoder,
    }
)
HANDLERS: Handlers = {}  # none of its own: workers import this file for its tasks

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
    program = three_functions(num_data_parallel, num_microbatches, num_processes // num_data_parallel)
    result = run_program(
        program.with_vocabulary(Vocabulary(owners=(__name__,))),
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


def train_functions(
    file: str, num_steps: int, *, num_processes: int = NUM_PROCESSES, num_microbatches: int = 1,
    rate: float = 1e-3, batch: int = 16, pool: Pool | None = None,
) -> TaskOutcome:  # fmt: skip
    """Train the model of a user's file by Adam on processes of this machine, each with batches of its own.

    Args:
        file: see `tasks.UserFunctions`.
        batch: examples of a microbatch.

    Raises SpecError where the file lacks a function, and what a failing process raises.
    """
    with opened_pool(pool, num_processes) as workers:
        return run_task(
            FUNCTIONS, num_steps, workers, num_processes=num_processes, num_microbatches=num_microbatches,
            file=str(Path(file).resolve()), rate=rate, batch=batch,
        )  # fmt: skip


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
