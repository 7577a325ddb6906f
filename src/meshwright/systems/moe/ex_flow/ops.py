"""Handlers of a decoder with experts whose tokens come home behind every expert, or stay where it is.

`options` of the job: the fields of `DecoderShape`, and `devices`, of every layer and expert which rank has it. Routers and
attention are on every rank. A row is a token: its number (sequence x positions + position), then its hidden units.

Shapes: N rows, E hidden units, B sequences, P positions, L layers, X experts, H heads, D units of one, G ranks. Keys and
values have one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import all_to_all, exchange_counts
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.systems.moe.ex_flow.decode_rows import (
    ATTEND,
    BEGIN,
    CHOOSE,
    COUNT,
    COUNT_NEW,
    EXPERTS,
    GATHER,
    KEEP,
    PACK,
    RETURN,
    SEND,
    of_prompt,
)

EPSILON = 1e-6  # of the norm
POSITION_SCALE = 0.3  # of what a position adds, beside what a token is


@dataclass(frozen=True)
class DecoderShape:
    """``prompt``: tokens of a sequence that are there, ``steps``: those that are decoded. ``prompts`` draws other prompts for
    the model of a seed."""

    layers: int = 4
    experts: int = 12
    hidden: int = 16
    heads: int = 2
    head: int = 4
    inner: int = 12
    vocabulary: int = 24
    sequences: int = 8
    prompt: int = 6
    steps: int = 4
    seed: int = 0
    prompts: int = 0

    @property
    def positions(self) -> int:
        """Of a sequence at the end; what the last step chooses is not read."""
        return self.prompt + self.steps


class LayerWeights(NamedTuple):
    """Of attention, and the router."""

    query_EHD: Tensor
    key_ED: Tensor
    value_ED: Tensor
    output_HDE: Tensor
    router_EX: Tensor


def _drawn(shape: DecoderShape, *key: str, size: tuple[int, ...]) -> Tensor:
    generator = keyed_generator(random_key(shape.seed, *key))
    return torch.randn(*size, generator=generator, dtype=torch.float64)


@cache
def layer_weights(shape: DecoderShape, layer: int) -> LayerWeights:
    """The same on all ranks."""
    hidden, heads = shape.hidden, shape.heads * shape.head
    sizes = {
        "query": (hidden, heads), "key": (hidden, shape.head), "value": (hidden, shape.head),
        "output": (heads, hidden), "router": (hidden, shape.experts),
    }  # fmt: skip
    return LayerWeights(
        *(_drawn(shape, name, str(layer), size=size) / size[0] ** 0.5 for name, size in sizes.items())
    )


@cache
def expert_weights(shape: DecoderShape, layer: int, expert: int) -> tuple[Tensor, Tensor]:
    """Gate and up [2 I, E], down [E, I]."""
    key = ("expert", str(layer), str(expert))
    up = _drawn(shape, *key, "up", size=(2 * shape.inner, shape.hidden)) / shape.hidden**0.5
    return up, _drawn(shape, *key, "down", size=(shape.hidden, shape.inner)) / shape.inner**0.5


@cache
def token_tables(shape: DecoderShape) -> tuple[Tensor, Tensor]:
    """What tokens are [V, E], and what positions add [P, E]."""
    positions = _drawn(shape, "positions", size=(shape.positions, shape.hidden))
    return _drawn(shape, "tokens", size=(shape.vocabulary, shape.hidden)), POSITION_SCALE * positions


def prompt_ids(shape: DecoderShape) -> Tensor:
    """[B, prompt]."""
    generator = keyed_generator(random_key(shape.seed, "prompts", shape.prompts))
    return torch.randint(shape.vocabulary, (shape.sequences, shape.prompt), generator=generator)


def normed(x: Tensor) -> Tensor:
    """By the root of its mean square."""
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()


def chosen(shape: DecoderShape, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and expert of every token."""
    gates = (normed(x) @ layer_weights(shape, layer).router_EX).softmax(-1)
    gate, expert = gates.max(-1)
    return gate, expert


def expert_of(shape: DecoderShape, layer: int, expert: int, x: Tensor) -> Tensor:
    """What an expert adds, before its gate."""
    up, down = expert_weights(shape, layer, expert)
    return gated_silu(normed(x) @ up.t()) @ down.t()


def next_ids(shape: DecoderShape, x: Tensor) -> Tensor:
    """The likeliest token behind each."""
    return (normed(x) @ token_tables(shape)[0].t()).argmax(-1)


def _shape_of(context: Context) -> DecoderShape:
    return DecoderShape(**context.options["shape"])


def _rows(numbers_N: Tensor, values_NE: Tensor) -> Tensor:
    """[N, 1 + E]: numbers are whole, and far below 2^53."""
    return torch.cat([numbers_N[:, None].to(values_NE.dtype), values_NE], 1)


def _parted(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows[:, 0].long(), rows[:, 1:]


def begin_tokens(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Every rank has as many neighbouring sequences at home. Contexts that nobody has brought are not a number."""
    shape, num_ranks = _shape_of(context), context.options["ranks"]
    each = shape.sequences // num_ranks
    sequences_B = torch.arange(context.rank * each, (context.rank + 1) * each)
    numbers_BP = sequences_B[:, None] * shape.positions + torch.arange(shape.prompt)
    tokens, positions = token_tables(shape)
    x_BPE = tokens[prompt_ids(shape)[sequences_B]] + positions[: shape.prompt]
    size = (shape.layers, shape.sequences, shape.positions, 2, shape.head)
    nothing = torch.full(size, torch.nan, dtype=torch.float64)
    return _rows(numbers_BP.flatten(), x_BPE.flatten(0, 1)), nothing


def attend(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Rows sorted by the rank of their expert, how many go to each, and keys and values of the rows that were here."""
    shape, (rows, contexts) = _shape_of(context), inputs
    layer, (numbers_N, x_NE) = row.part % shape.layers, _parted(rows)
    sequences_N, positions_N = numbers_N // shape.positions, numbers_N % shape.positions
    weights, n_NE = layer_weights(shape, layer), normed(x_NE)
    new_N2D = torch.stack([n_NE @ weights.key_ED, n_NE @ weights.value_ED], 1)
    all_BP2D = contexts[layer].clone()
    all_BP2D[sequences_N, positions_N] = new_N2D
    past_NP2D = all_BP2D[sequences_N]
    unseen_NP = torch.arange(shape.positions) > positions_N[:, None]
    query_NHD = (n_NE @ weights.query_EHD).view(-1, shape.heads, shape.head)
    scores_NHP = torch.einsum("nhd,npd->nhp", query_NHD, past_NP2D[:, :, 0]) / shape.head**0.5
    shares_NHP = scores_NHP.masked_fill(unseen_NP[:, None], -torch.inf).softmax(-1)
    values_NPD = past_NP2D[:, :, 1].masked_fill(unseen_NP[..., None], 0.0)
    seen_NE = torch.einsum("nhp,npd->nhd", shares_NHP, values_NPD).flatten(1) @ weights.output_HDE
    x_NE = x_NE + seen_NE
    target_N = torch.tensor(context.options["devices"][layer])[chosen(shape, layer, x_NE)[1]]
    leaving_G = torch.bincount(target_N, minlength=context.options["ranks"])
    sorted_rows = _rows(numbers_N, x_NE)[target_N.argsort(stable=True)]
    return sorted_rows, leaving_G, _rows(numbers_N, new_N2D.flatten(1))


def experts_here(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The rows with what their expert adds; all of them are of experts that this rank has."""
    shape, (numbers_N, x_NE) = _shape_of(context), _parted(inputs[0])
    layer = row.part % shape.layers
    gate_N, expert_N = chosen(shape, layer, x_NE)
    made_NE = x_NE.clone()
    for expert in sorted(set(expert_N.tolist())):
        assert context.options["devices"][layer][expert] == context.rank, f"expert {expert} is elsewhere"
        own = expert_N == expert
        made_NE[own] += gate_N[own, None] * expert_of(shape, layer, expert, x_NE[own])
    return (_rows(numbers_N, made_NE),)


def pack_contexts(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """New keys and values of all layers, each with its number x layers + layer, and how many there are for every rank."""
    layers, parts = len(inputs), [_parted(rows) for rows in inputs]
    packed = torch.cat([_rows(numbers * layers + at, new) for at, (numbers, new) in enumerate(parts)])
    return packed, torch.full((context.options["ranks"],), len(packed))


def gather_contexts(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """All ranks' rows, those of the first one in front."""
    packed, to_all_G, from_all_G = inputs
    return all_to_all(context, row, (packed.repeat(len(row.members), 1), to_all_G, from_all_G))


def keep_contexts(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Contexts with the new ones in their places."""
    shape, (contexts, rows) = _shape_of(context), inputs
    numbers_N, new = _parted(rows)
    tokens_N, layers_N = numbers_N // shape.layers, numbers_N % shape.layers
    kept = contexts.clone()
    kept[layers_N, tokens_N // shape.positions, tokens_N % shape.positions] = new.view(-1, 2, shape.head)
    return (kept,)


def choose_tokens(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The last token of every sequence that is here, and the one that follows it, which begins where this one ended."""
    shape, (numbers_N, x_NE) = _shape_of(context), _parted(inputs[0])
    is_last_N = numbers_N % shape.positions == shape.prompt - 1 + row.part
    numbers_N, x_NE = numbers_N[is_last_N], x_NE[is_last_N]
    if len(row.writes) == 1:
        return (_rows(numbers_N, x_NE),)
    tokens, positions = token_tables(shape)
    following_NE = tokens[next_ids(shape, x_NE)] + positions[numbers_N % shape.positions + 1]
    return _rows(numbers_N, x_NE), _rows(numbers_N + 1, following_NE)


_EXCHANGES = {
    COUNT: exchange_counts,
    SEND: all_to_all,
    RETURN: all_to_all,
    COUNT_NEW: exchange_counts,
    GATHER: gather_contexts,
}
HANDLERS: Handlers = {
    BEGIN.name: begin_tokens,
    ATTEND.name: attend,
    EXPERTS.name: experts_here,
    PACK.name: pack_contexts,
    KEEP.name: keep_contexts,
    CHOOSE.name: choose_tokens,
    **{name: handler for effect, handler in _EXCHANGES.items() for name in (effect.name, of_prompt(effect).name)},
}  # fmt: skip
