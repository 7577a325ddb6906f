"""What a block of a decoder is made of: attention, and an MLP or experts; and blocks as tables of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

from meshwright.specs.bound.bound import MOST_LAYERS
from meshwright.specs.error import SpecError
from meshwright.specs.record import plain, record

SCORES = Literal["softmax", "sigmoid"]
# Which half of an encoder-decoder a block is of; "": a decoder alone.
Half = Literal["", "encoder", "decoder"]


@dataclass(frozen=True)
class LatentRanks:
    """Latent attention (DeepSeek's MLA, arXiv 2405.04434): keys and values are made from `key_value_rank` numbers and
    `rotary_head_dim` turned ones that all heads share; queries from `query_rank` numbers (0: straight from the hidden
    state). `value_head_dim` is the width of a value.
    """

    key_value_rank: int
    rotary_head_dim: int
    value_head_dim: int
    query_rank: int = 0


@dataclass(frozen=True)
class Attention:
    """Causal attention. Sizes are counts of numbers.

    `num_kv_heads` divides `num_heads`; `head_dim` is the whole width of a query, with `latent` ranks its unturned and its
    turned part. `window`: only the last so many tokens are seen (0: all). `logit_cap`: scores s become
    cap * tanh(s / cap) (0: they do not).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_query_key_norm: bool = False
    window: int = 0
    logit_cap: float = 0.0
    latent: LatentRanks | None = None

    @property
    def value_dim(self) -> int:
        """Width of one value."""
        return self.latent.value_head_dim if self.latent else self.head_dim

    @property
    def turned_dim(self) -> int:
        """Numbers of one query that rotary positions turn."""
        return self.latent.rotary_head_dim if self.latent else self.head_dim

    @property
    def query_size(self) -> int:
        """Width of all queries, which need not be that of the hidden state."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Width of all values."""
        return self.num_kv_heads * self.value_dim

    @property
    def result_size(self) -> int:
        """Width of the result, before the output projection."""
        return self.num_heads * self.value_dim

    @property
    def qkv_size(self) -> int:
        """Width of queries, keys and values together."""
        return self.query_size + self.key_size + self.value_size


@dataclass(frozen=True)
class FeedForward:
    """A dense MLP, `intermediate_size` wide inside. `activation` is empty for the family's own (GELU by tanh for GPT-2, SiLU
    or GELU of a gate for the others) or "gelu", the exact one.
    """

    intermediate_size: int
    has_bias: bool = False
    activation: str = ""


@dataclass(frozen=True)
class Routing:
    """How a token's experts are chosen, and by what their results are multiplied before they are added: their gates.

    `scores` of the router's logits: "softmax" over all experts, or "sigmoid" of each. The best are chosen, of
    `num_groups_per_token` of the `num_groups` equal groups of experts if these are fewer: groups with the best expert, or
    with `has_correction` with the best two together (DeepSeek-V2, arXiv 2405.04434, and V3, arXiv 2412.19437). The
    correction, a number for each expert, is added to scores for choosing only. Gates are the chosen scores, with
    `has_unit_sum` divided by their sum, times `gate_scale`. Logits are a matrix's, or with a `cosine_rank` cosines of tokens
    that are narrowed to so many numbers and embeddings of experts, over a temperature that is learned (X-MoE, Chi et al.
    2022, arXiv 2204.09179).
    """

    scores: SCORES = "softmax"
    num_groups: int = 1
    num_groups_per_token: int = 1
    has_correction: bool = False
    has_unit_sum: bool = True
    gate_scale: float = 1.0
    cosine_rank: int = 0

    def fits(self, num_experts: int, num_per_token: int) -> bool:
        """Are groups of these experts whole, and do those of a token hold enough of them?"""
        size, rest = divmod(num_experts, self.num_groups)
        is_whole = rest == 0 and self.num_groups_per_token <= self.num_groups
        # a corrected group counts by its best two
        return is_whole and size * self.num_groups_per_token >= num_per_token and size > self.has_correction


# What a family does where a model says nothing: the rule of its published models.
ROUTINGS: Mapping[str, Routing] = {
    **dict.fromkeys(("qwen2_moe", "deepseek_v2"), Routing(has_unit_sum=False)),
    "deepseek_v3": Routing("sigmoid", 8, 4, has_correction=True, gate_scale=2.5),
}


@dataclass(frozen=True)
class Experts:
    """`num_experts` MLPs of which a token goes to `num_experts_per_token`, each `intermediate_size` wide inside, and through
    the shared ones, together `shared_intermediate_size` wide. `has_bias` is that of the shared ones. `routing` None is
    the family's own.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_bias: bool = False
    routing: Routing | None = None

    def routing_in(self, architecture: str) -> Routing:
        """Its routing, in a model of this family."""
        return self.routing or ROUTINGS.get(architecture, Routing())


@dataclass(frozen=True)
class BlockSpec:
    """One layer of a decoder: attention, then an MLP or experts, each with its norm and on the residual stream.

    ``half``: of an encoder-decoder, an encoder's tokens see all others; a decoder's block attends, between its two parts, to
    what the encoder has made, with as many heads (Vaswani et al. 2017, arXiv 1706.03762)."""

    attention: Attention
    feed_forward: FeedForward | Experts
    half: Half = ""

    @property
    def experts(self) -> Experts | None:
        """Its experts; None: it has one MLP."""
        return self.feed_forward if isinstance(self.feed_forward, Experts) else None


BlockRuns = tuple[
    tuple[BlockSpec, int], ...
]  # blocks in the order of the model, each with how often it follows itself


class BlockKind(NamedTuple):
    """What tells the blocks of one model apart: what they are, and the parameters that train, such as "qkv.weight" (None:
    all).
    """

    block: BlockSpec
    trained: tuple[str, ...] | None = None


def merged_runs(blocks: Iterable[BlockSpec]) -> BlockRuns:
    """Blocks in the order of the model, those that follow an equal one counted."""
    return tuple((block, sum(1 for _ in run)) for block, run in groupby(blocks))


def attended_pairs(sequence_length: int, window: int = 0) -> float:
    """Pairs of a query and a key it sees in one causal sequence; with a window, its last `window` keys."""
    seen = sequence_length if window == 0 else min(window, sequence_length)
    return seen * (seen + 1) / 2 + (sequence_length - seen) * seen


def written_blocks(layers: Sequence[BlockSpec]) -> list[dict[str, Any]]:
    """A table for every kind of block, in the order in which they appear."""
    numbers: dict[BlockSpec, list[int]] = {}
    for number, block in enumerate(layers):
        numbers.setdefault(block, []).append(number)
    return [{"layers": _ranges(found), **plain(block)} for block, found in numbers.items()]


def read_blocks(tables: Any, where: str) -> BlockRuns:
    """What `written_blocks` wrote. Raises SpecError where a layer is given twice, or none."""
    found: dict[int, BlockSpec] = {}
    for number, table in enumerate(tables if isinstance(tables, (list, tuple)) else [None]):
        here = f"{where}: block {number}"
        if not isinstance(table, dict):
            raise SpecError(f"{here} is {table!r}", allowed="a table with layers, attention and feed_forward")
        rest = {key: value for key, value in table.items() if key != "layers"}
        block = record(BlockSpec, rest, here)
        for layer in _numbers(table.get("layers"), here):
            if layer in found:
                raise SpecError(f"{here}: layer {layer} is also another block's", allowed="each layer once")
            found[layer] = block
    missing = sorted(set(range(len(found))) - set(found))
    if missing:
        raise SpecError(f"{where}: no block is layer {missing[0]}", allowed="every layer from 0")
    return merged_runs(found[layer] for layer in range(len(found)))


def _ranges(numbers: Iterable[int]) -> str:
    """ "0-2, 5" of 0, 1, 2 and 5."""
    runs = (list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    ends = ((run[0][1], run[-1][1]) for run in runs)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def _numbers(text: Any, where: str) -> list[int]:
    found: list[int] = []
    for entry in text.split(",") if isinstance(text, str) else ("",):
        first, _, last = entry.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) >= MOST_LAYERS:
            raise SpecError(f"{where}: 'layers' is {text!r}", allowed='numbers and ranges, such as "0-2, 5"')
        found += range(int(first), int(last or first) + 1)
    return found
