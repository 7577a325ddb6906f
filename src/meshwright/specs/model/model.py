"""ModelSpec: the dimensions of a decoder, dense or with experts, its parameters to the unit, its work per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from meshwright.specs.error import SpecError
from meshwright.specs.model.adaptation import check_adaptation, num_trained_parameters, trained_names
from meshwright.specs.model.architecture import ARCHITECTURES, Architecture
from meshwright.specs.model.block_kind import BlockKind
from meshwright.specs.model.check import check_model
from meshwright.specs.model.digest import model_digest
from meshwright.specs.model.parameter import (
    Parameter,
    block_parameters,
    embedding_parameters,
    head_parameters,
)
from meshwright.specs.model.rotary_scaling import RotaryScaling
from meshwright.specs.model.token_work import (
    num_active_parameters,
    num_matmul_parameters,
    train_flops_per_token,
)

FLOAT_FIELDS = (
    *("norm_epsilon", "rope_theta", "attention_logit_cap", "final_logit_cap"),
    *("rope_factor", "rope_low_factor", "rope_high_factor", "lora_alpha"),
)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer.

    Layers are: the embedding, `num_layers` blocks numbered from 0, and the head (final norm, vocabulary
    head, loss). All sizes are counts of numbers. Raises SpecError when the dimensions contradict each other.
    `source` says where the dimensions come from; neither it nor `name` enters `digest`.

    A model with experts has `num_experts` of them in every block that `dense_layers` does not list, each with
    an MLP of `expert_intermediate_size`; a token goes to `num_experts_per_token` of them and through the
    shared experts, together `shared_intermediate_size` wide. Latent attention (DeepSeek's MLA) has a
    `key_value_rank`: keys and values are made from that many numbers and `rotary_head_dim` turned ones that
    all heads share; queries from `query_rank` numbers (0: straight from the hidden state). `head_dim` is then
    the whole width of a query (unturned and turned) and `value_head_dim` that of a value. The blocks of
    `sliding_layers` attend to the last `sliding_window` tokens only.

    `activation` is empty for the family's own (GELU by tanh for GPT-2, SiLU for the others) or "gelu", the exact
    one. `rope_scaling` says how rotary frequencies are changed, with the numbers of `RotaryScaling`.

    `trained`: patterns of the executor's names of the parameters that train; the others are frozen (empty: all train).
    With a `lora_rank` the matrices `lora_targets` of every block have low-rank additions, and these train (see
    `adaptation`).
    """

    name: str
    architecture: Architecture
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary_size: int
    max_sequence_length: int
    has_tied_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_query_key_norm: bool = False
    norm_epsilon: float = 1e-5
    rope_theta: float = 10_000.0
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    dense_layers: tuple[int, ...] = ()
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_head_dim: int = 0
    value_head_dim: int = 0
    sliding_window: int = 0
    sliding_layers: tuple[int, ...] = ()
    attention_logit_cap: float = 0.0
    final_logit_cap: float = 0.0
    activation: str = ""
    rope_scaling: str = ""
    rope_factor: float = 1.0
    rope_low_factor: float = 1.0
    rope_high_factor: float = 1.0
    rope_original_length: int = 0
    trained: tuple[str, ...] = ()
    lora_rank: int = 0
    lora_alpha: float = 0.0
    lora_targets: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise SpecError(
                f"{self.name}: architecture {self.architecture!r} is not known",
                allowed=", ".join(ARCHITECTURES),
            )
        for field in FLOAT_FIELDS:
            object.__setattr__(self, field, float(getattr(self, field)))  # 10000 for 10000.0: one digest
        for field in ("dense_layers", "sliding_layers", "trained", "lora_targets"):  # files have lists
            object.__setattr__(self, field, tuple(getattr(self, field)))
        check_model(self)
        check_adaptation(self)

    @classmethod
    def decoder(
        cls,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_size: int | None = None,
        vocabulary_size: int = 256,
        max_sequence_length: int = 1024,
        has_tied_embeddings: bool = False,
        name: str = "decoder",
    ) -> ModelSpec:
        """A small Llama-style decoder by its dimensions: RMSNorm, SwiGLU, rotary positions, no biases.

        Left out, `head_dim` is hidden_size / num_heads, `num_kv_heads` is num_heads and `intermediate_size`
        is 8/3 hidden_size rounded up to a multiple of 16 (SwiGLU's usual size). A vocabulary of 256 is bytes.
        """
        if head_dim is None:
            if num_heads < 1 or hidden_size % num_heads:
                raise SpecError(
                    f"{name}: hidden size {hidden_size} does not divide into {num_heads} heads",
                    allowed="a number of heads that divides the hidden size, or an explicit head_dim",
                )
            head_dim = hidden_size // num_heads
        if intermediate_size is None:
            intermediate_size = -(-8 * hidden_size // 3 // 16) * 16
        return cls(
            name=name,
            architecture="llama",
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            vocabulary_size=vocabulary_size,
            max_sequence_length=max_sequence_length,
            has_tied_embeddings=has_tied_embeddings,
            source="given by dimensions",
        )

    @classmethod
    def gpt(
        cls,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        *,
        vocabulary_size: int,
        max_sequence_length: int,
        name: str,
        source: str,
    ) -> ModelSpec:
        """A GPT as the tables of papers give it: biases everywhere, learned positions, an MLP four times as wide, one
        table for words and head."""
        return cls(
            name=name,
            architecture="gpt2",
            num_layers=num_layers,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // num_heads,
            intermediate_size=4 * hidden_size,
            vocabulary_size=vocabulary_size,
            max_sequence_length=max_sequence_length,
            has_tied_embeddings=True,
            has_qkv_bias=True,
            has_output_bias=True,
            has_mlp_bias=True,
            source=source,
        )

    @property
    def is_adapted(self) -> bool:
        """Does only a part of it train, or are there low-rank additions?"""
        return bool(self.trained or self.lora_rank)

    @cached_property
    def base(self) -> ModelSpec:
        """The same model, all of which trains, without additions: what a checkpoint of Hugging Face holds."""
        if not self.is_adapted:
            return self
        return replace(self, trained=(), lora_rank=0, lora_alpha=0.0, lora_targets=())

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
        return self.architecture == "qwen2_moe" and self.shared_intermediate_size > 0

    @property
    def has_latent_attention(self) -> bool:
        """Keys and values come from a few numbers for all heads (DeepSeek's MLA)."""
        return self.key_value_rank > 0

    @property
    def rotary_scaling(self) -> RotaryScaling | None:
        """How rotary frequencies are changed; None: not at all."""
        if not self.rope_scaling:
            return None
        return RotaryScaling(
            self.rope_scaling,
            self.rope_factor,
            self.rope_low_factor,
            self.rope_high_factor,
            self.rope_original_length,
        )

    @property
    def query_size(self) -> int:
        """Width of all queries: num_heads * head_dim, which need not be hidden_size."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        """Width of all values; that of all keys unless the model has a `value_head_dim`."""
        return self.num_kv_heads * (self.value_head_dim or self.head_dim)

    @property
    def result_size(self) -> int:
        """Width of attention's result, before the output projection."""
        return self.num_heads * (self.value_head_dim or self.head_dim)

    @property
    def qkv_size(self) -> int:
        """Width of queries, keys and values together."""
        return self.query_size + self.key_size + self.value_size

    def block_kind(self, block: int) -> BlockKind:
        """What kind of block number `block` is."""
        window = self.sliding_window if block in self.sliding_layers else 0
        return BlockKind(
            self.num_experts > 0 and block not in self.dense_layers,
            window,
            self._trained_by_block[block] if self.is_adapted else None,
        )

    def block_kinds(self, first: int, count: int) -> tuple[tuple[int, int], ...]:
        """Of blocks first .. first + count - 1: one block of each kind, and how many there are of it."""
        if not (self.sliding_layers or (self.num_experts and self.dense_layers) or self.trained):
            return ((first, count),) if count else ()  # all blocks are of one kind
        found: dict[BlockKind, tuple[int, int]] = {}
        for block in range(first, first + count):
            kind = self.block_kind(block)
            found[kind] = (found[kind][0], found[kind][1] + 1) if kind in found else (block, 1)
        return tuple(found.values())

    @cached_property
    def num_embedding_parameters(self) -> int:
        """Parameters of the token table and of learned positions."""
        return sum(parameter.num_elements for parameter in embedding_parameters(self))

    def num_block_parameters(self, block: int = 0) -> int:
        """Parameters of one block, all its experts included; counted once for each kind of block."""
        kind = self.block_kind(block)
        if kind not in self._counts_by_kind:
            parameters = block_parameters(self, block)
            self._counts_by_kind[kind] = sum(parameter.num_elements for parameter in parameters)
        return self._counts_by_kind[kind]

    @cached_property
    def _trained_by_block(self) -> tuple[tuple[str, ...], ...]:
        """Of every block the parameters that train."""
        return tuple(trained_names(self, block) for block in range(self.num_layers))

    @cached_property
    def _counts_by_kind(self) -> dict[BlockKind, int]:
        """Filled by `num_block_parameters`."""
        return {}

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of the final norm."""
        return self.hidden_size * (2 if self.is_gpt2 else 1)

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the vocabulary head, counted also when the token table is used for it."""
        return self.vocabulary_size * self.hidden_size

    @cached_property
    def num_parameters(self) -> int:
        """All parameters, a tied table counted once: what AutoModelForCausalLM holds."""
        head = 0 if self.has_tied_embeddings else self.num_head_parameters
        kinds = self.block_kinds(0, self.num_layers)
        blocks = sum(count * self.num_block_parameters(block) for block, count in kinds)
        return self.num_embedding_parameters + blocks + self.num_norm_parameters + head

    @cached_property
    def num_trained_parameters(self) -> int:
        """Those of them, and of low-rank additions, that train."""
        return num_trained_parameters(self)

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters that one token uses: of the experts those it goes to; in a dense model all of them."""
        return num_active_parameters(self)

    @cached_property
    def num_matmul_parameters(self) -> int:
        """Parameters that one token meets in a matrix product: of the blocks' matrices and the vocabulary head."""
        return num_matmul_parameters(self)

    def train_flops_per_token(self, sequence_length: int | None = None) -> float:
        """Model FLOPs (forward and backward, no recompute) that training spends on one token: see `token_work`."""
        return train_flops_per_token(self, sequence_length)

    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter in checkpoint names: embedding, blocks, head (a tied head has no matrix)."""
        blocks = (p for block in range(self.num_layers) for p in block_parameters(self, block))
        return (*embedding_parameters(self), *blocks, *head_parameters(self))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values (lists, no tuples), for files; `from_dict` reads them back."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelSpec:
        """Read what `to_dict` wrote. Raises SpecError on fields that do not fit."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise SpecError(
                f"these are not the fields of a model: {error}", allowed=", ".join(cls.__dataclass_fields__)
            ) from None

    @cached_property
    def digest(self) -> str:
        """Hash of everything that decides shapes and arithmetic; a plan keeps it to know its model again."""
        return model_digest(self)
