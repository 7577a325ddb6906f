"""ModelShape: what a decoder is, as data: its width, its vocabulary, its blocks, and which part of it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar, get_args

from meshwright.specs.error import SpecError
from meshwright.specs.model.block import Attention, BlockRuns, BlockSpec, Experts, FeedForward
from meshwright.specs.model.rotary_scaling import RotaryScaling

# The families of decoders whose blocks are known here, by the name that their `config.json` has.
Architecture = Literal[
    "gpt2",
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
GATE_ALPHA, GATE_LIMIT = (
    1.702,
    7.0,
)  # of GPT-OSS's activation: its published config.json says the limit, its code alpha
Part = TypeVar("Part", Attention, FeedForward, Experts)


@dataclass(frozen=True)
class ModelShape:
    """The fields of `ModelSpec`, which says what they mean, and what follows from them without counting parameters."""

    name: str
    architecture: Architecture
    hidden_size: int
    vocabulary_size: int
    max_sequence_length: int
    blocks: BlockRuns
    has_tied_embeddings: bool = False
    norm_epsilon: float = 1e-5
    rope_theta: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    final_logit_cap: float = 0.0
    has_ladder_residual: bool = False
    has_parallel_branches: bool = False
    trained: tuple[str, ...] = ()
    lora_rank: int = 0
    lora_alpha: float = 0.0
    lora_targets: tuple[str, ...] = ()
    source: str = ""

    @cached_property
    def num_layers(self) -> int:
        """Blocks; embedding and head are not counted."""
        return len(self.layers)

    @cached_property
    def layers(self) -> tuple[BlockSpec, ...]:
        """Of every layer its block."""
        return tuple(block for block, count in self.blocks for _ in range(count))

    @cached_property
    def kinds(self) -> tuple[BlockSpec, ...]:
        """Every kind of block once."""
        return tuple(dict.fromkeys(block for block, _ in self.blocks))

    @property
    def hands_on_results(self) -> bool:
        """Does a stage give the next one results of parts beside the residual stream, which lacks them?"""
        return self.has_ladder_residual or self.has_parallel_branches

    @cached_property
    def num_encoder_layers(self) -> int:
        """Blocks of its encoder, which are its first; 0: it has none."""
        return sum(count for block, count in self.blocks if block.half == "encoder")

    @property
    def num_halves(self) -> int:
        """Into how many halves a window of tokens is cut, of which every block sees one: of an encoder-decoder two, its
        encoder reads the first and its decoder goes on with the second."""
        return 2 if self.num_encoder_layers else 1

    def runs(self) -> Iterator[tuple[int, BlockSpec, int]]:
        """Number of the first block of every run, the block, and how many there are of it."""
        first = 0
        for block, count in self.blocks:
            yield first, block, count
            first += count

    @cached_property
    def attention(self) -> Attention:
        """The attention of every block, windows aside. Raises SpecError where they differ in more: ask a block."""
        return self._same({replace(block.attention, window=0) for block, _ in self.blocks}, "attention")

    @cached_property
    def mlp(self) -> FeedForward | None:
        """The MLP of blocks without experts; None where there is no such block. Raises SpecError where MLPs differ."""
        found = {
            block.feed_forward for block, _ in self.blocks if isinstance(block.feed_forward, FeedForward)
        }
        return self._same(found, "MLPs") if found else None

    @cached_property
    def experts(self) -> Experts | None:
        """The experts of blocks that have them; None in a dense model. Raises SpecError where experts differ."""
        found = {block.experts for block, _ in self.blocks if block.experts}
        return self._same(found, "experts") if found else None

    def _same(self, found: set[Part], what: str) -> Part:
        if len(found) != 1:
            raise SpecError(
                f"{self.name}: its blocks have {len(found)} kinds of {what}",
                allowed="one kind here",
                next="ask model.layers[number] for the block that is meant",
            )
        return next(iter(found))

    @property
    def num_heads(self) -> int:
        """Heads of every block."""
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads of every block."""
        return self.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Width of one query of every block."""
        return self.attention.head_dim

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLP; where all blocks have experts, inside one of these."""
        return (self.mlp or self.experts or FeedForward(0)).intermediate_size

    @property
    def num_experts(self) -> int:
        """Experts of every block that has them; 0 in a dense model."""
        return self.experts.num_experts if self.experts else 0

    @property
    def is_adapted(self) -> bool:
        """Does only a part of it train, or are there low-rank additions?"""
        return bool(self.trained or self.lora_rank)

    @property
    def is_gpt2(self) -> bool:
        """LayerNorm, GELU, biases everywhere, learned positions; the others are Llama's kind."""
        return self.architecture == "gpt2"

    @property
    def has_learned_positions(self) -> bool:
        """A table of positions is added to the token's row (GPT-2); otherwise positions are rotary."""
        return self.is_gpt2

    @property
    def has_gated_mlp(self) -> bool:
        """SiLU(gate) * up then down; otherwise up, GELU, down (GPT-2)."""
        return not self.is_gpt2

    @property
    def is_gemma(self) -> bool:
        """GELU in the gate, an embedding scaled by the root of the hidden size."""
        return self.architecture.startswith("gemma")

    @property
    def has_post_norms(self) -> bool:
        """Attention and MLP are each followed by a norm, too (Gemma 2 and 3): four norms in a block."""
        return self.architecture in ("gemma2", "gemma3_text")

    @property
    def has_attention_sinks(self) -> bool:
        """One learned number for each head joins the softmax of its scores (GPT-OSS)."""
        return self.architecture == "gpt_oss"

    @property
    def has_expert_bias(self) -> bool:
        """Router and experts have biases (GPT-OSS)."""
        return self.architecture == "gpt_oss"

    @property
    def has_shared_gate(self) -> bool:
        """The shared expert's result is multiplied by a gate of its own (Qwen2-MoE)."""
        return self.architecture == "qwen2_moe" and bool(
            self.experts and self.experts.shared_intermediate_size
        )

    @property
    def has_router_corrections(self) -> bool:
        """Constants are added to its routers' scores, which are no parameters: they come with the weights."""
        experts = (block.experts for block in self.kinds)
        return any(each.routing_in(self.architecture).has_correction for each in experts if each)

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of the final norm."""
        return self.hidden_size * (2 if self.is_gpt2 else 1)

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the vocabulary head, counted also when the token table is used for it."""
        return self.vocabulary_size * self.hidden_size
