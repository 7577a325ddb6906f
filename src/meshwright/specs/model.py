"""ModelSpec: the dimensions of a dense decoder, its parameters to the unit and its work per token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from meshwright.specs.error import SpecError
from meshwright.specs.parameter import Parameter, block_parameters, embedding_parameters, head_parameters

Architecture = Literal["gpt2", "llama", "qwen2", "qwen3"]
ARCHITECTURES: tuple[Architecture, ...] = ("gpt2", "llama", "qwen2", "qwen3")
# One multiply and one add forward, twice that backward (input and weight gradient).
TRAIN_FLOPS_PER_MATMUL_PARAMETER = 6
_POSITIVE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"),
    *("intermediate_size", "vocabulary_size", "max_sequence_length"),
)


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder-only transformer.

    Layers are: the embedding, `num_layers` blocks numbered from 0, and the head (final norm, vocabulary
    head, loss). All sizes are counts of numbers. Raises SpecError when the dimensions contradict each other.
    `source` says where the dimensions come from; neither it nor `name` enters `digest`.
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
    source: str = ""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise SpecError(
                f"{self.name}: architecture {self.architecture!r} is not known",
                allowed=", ".join(ARCHITECTURES),
            )
        for field in ("norm_epsilon", "rope_theta"):  # a file may say 10000 for 10000.0: one digest
            object.__setattr__(self, field, float(getattr(self, field)))
        for field in _POSITIVE:
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"{self.name}: {field} is {value!r}", allowed="a whole number from 1")
        if self.num_heads % self.num_kv_heads:
            raise SpecError(
                f"{self.name}: {self.num_heads} heads cannot share {self.num_kv_heads} key-value heads",
                allowed="a number of key-value heads that divides the number of heads",
            )
        if self.architecture != "gpt2" and self.head_dim % 2:
            raise SpecError(
                f"{self.name}: head_dim is {self.head_dim}, and rotary positions turn pairs of numbers",
                allowed="an even head_dim",
            )
        if self.is_gpt2 and not self.query_size == self.key_size == self.hidden_size:
            raise SpecError(
                f"{self.name}: hidden size {self.hidden_size}, but {self.num_heads} heads of {self.head_dim}",
                allowed="for GPT-2 a hidden size that the number of heads divides",
            )

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
    def query_size(self) -> int:
        """Width of all queries: num_heads * head_dim, which need not be hidden_size."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Width of all keys, and of all values: num_kv_heads * head_dim."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Width of the fused query, key and value projection."""
        return self.query_size + 2 * self.key_size

    @cached_property
    def num_embedding_parameters(self) -> int:
        """Parameters of the token table and of learned positions."""
        return sum(parameter.num_elements for parameter in embedding_parameters(self))

    @cached_property
    def num_block_parameters(self) -> int:
        """Parameters of one block; all blocks are alike."""
        return sum(parameter.num_elements for parameter in block_parameters(self, 0))

    @property
    def num_norm_parameters(self) -> int:
        """Parameters of the final norm."""
        return self.hidden_size * (2 if self.is_gpt2 else 1)

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the vocabulary head, counted also when the token table is used for it."""
        return self.vocabulary_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters, a tied table counted once: what AutoModelForCausalLM holds."""
        head = 0 if self.has_tied_embeddings else self.num_head_parameters
        blocks = self.num_layers * self.num_block_parameters
        return self.num_embedding_parameters + blocks + self.num_norm_parameters + head

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token uses; in a dense model all of them."""
        return self.num_parameters

    @cached_property
    def num_matmul_parameters(self) -> int:
        """Parameters used in a matrix product: those of the blocks' matrices and of the vocabulary head."""
        block = sum(p.num_elements for p in block_parameters(self, 0) if p.is_matmul)
        return self.num_layers * block + self.num_head_parameters

    def train_flops_per_token(self, sequence_length: int | None = None) -> float:
        """Model FLOPs (forward and backward, no recompute) that training spends on one token.

        6 per parameter of a matrix product (the embedding lookup is no product); with `sequence_length` S
        also causal attention, 6 * num_layers * query_size * (S + 1): two products of 2 * query_size FLOPs
        with each of (S + 1) / 2 keys on average, three times for the backward. Norms, activations: left out.
        """
        flops = float(TRAIN_FLOPS_PER_MATMUL_PARAMETER * self.num_matmul_parameters)
        if sequence_length is not None:
            flops += (
                TRAIN_FLOPS_PER_MATMUL_PARAMETER * self.num_layers * self.query_size * (sequence_length + 1)
            )
        return flops

    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter in checkpoint names: embedding, blocks, head (a tied head has no matrix)."""
        blocks = (p for block in range(self.num_layers) for p in block_parameters(self, block))
        return (*embedding_parameters(self), *blocks, *head_parameters(self))

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for files; `from_dict` reads them back."""
        return asdict(self)

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
        fields = {key: value for key, value in asdict(self).items() if key not in ("name", "source")}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
