"""ModelSpec: a decoder, dense or with experts, its parameters to the unit, its work per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from meshwright.specs.error import SpecError
from meshwright.specs.model import parameter, token_work
from meshwright.specs.model.adaptation import check_adaptation, num_trained_parameters, trained_names
from meshwright.specs.model.block import BlockKind, read_blocks, written_blocks
from meshwright.specs.model.check import check_model
from meshwright.specs.model.dimension import flat_dimensions, model_digest, shape_fields
from meshwright.specs.model.shape import Architecture, ModelShape
from meshwright.specs.record import plain, record


@dataclass(frozen=True)
class ModelSpec(ModelShape):
    """A decoder-only transformer.

    Layers are: the embedding, the blocks numbered from 0, and the head (final norm, vocabulary head, loss). `blocks` are
    runs in the order of the model: a block and how often it follows itself; each has an attention part and a feed-forward
    part with sizes of their own (`specs.model.block`). All sizes are counts of numbers. `ModelSpec.decoder`, `.gpt` and
    `.of_dimensions` make one from flat numbers that hold for all blocks. Raises SpecError when dimensions contradict each
    other. `source` says where they come from; neither it nor `name` enters `digest`.

    `rotary_scaling` says how rotary frequencies are changed (None: not at all). Logits x become cap * tanh(x / cap) under a
    `final_logit_cap` (0: none). With a ladder residual attention and MLP read the residual stream without the result of the
    part right before them (`stage.chain.decoder`); what a stage hands on is then that stream and the result. With parallel
    branches all of them read what the first one reads, and their results are added behind the last; a stage hands on what
    they read, and the sum of the results so far.

    Of an encoder-decoder the first blocks are the encoder's (`BlockSpec.half`), the others its decoder's. A norm stands
    behind the encoder, and the decoder has a table of its own, or shares the tied one.

    `trained`: patterns of the executor's names of the parameters that train; the others are frozen (empty: all train).
    With a `lora_rank` the matrices `lora_targets` of every block have low-rank additions, and these train (see
    `adaptation`).
    """

    num_embedding_parameters = cached_property(parameter.num_embedding_parameters)
    num_parameters = cached_property(parameter.num_parameters)
    num_trained_parameters = cached_property(num_trained_parameters)
    num_active_parameters = cached_property(token_work.num_active_parameters)
    num_matmul_parameters = cached_property(token_work.num_matmul_parameters)
    digest = cached_property(model_digest)
    train_flops_per_token = token_work.train_flops_per_token
    parameters = parameter.all_parameters
    dimensions = flat_dimensions

    def __post_init__(self) -> None:
        check_model(self)
        check_adaptation(self)

    @classmethod
    def of_dimensions(
        cls, name: str, architecture: Architecture, source: str = "", **dimensions: Any
    ) -> ModelSpec:
        """A decoder by flat dimensions (`dimensions`), those that are left out as in a dense Llama. Raises SpecError.

        A model with experts has `num_experts` of them in every block that `dense_layers` does not list, each with an MLP
        of `expert_intermediate_size`; the blocks of `sliding_layers` attend to the last `sliding_window` tokens only; with
        a `key_value_rank` attention is latent. The first `num_encoder_layers` are an encoder's, the others its decoder's.
        `rope_scaling`, `rope_factor`, ... are the fields of `RotaryScaling`.
        """
        return cls(name=name, architecture=architecture, source=source, **shape_fields(name, dimensions))

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
        return cls.of_dimensions(
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
        return cls.of_dimensions(
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

    def changed(self, **changes: Any) -> ModelSpec:
        """The same model with other fields or dimensions, such as hidden_size=64, num_layers=4. Raises SpecError."""
        if all(name in self.__dataclass_fields__ for name in changes):
            return replace(self, **changes)
        named = {name: changes.pop(name, getattr(self, name)) for name in ("name", "architecture", "source")}
        return self.of_dimensions(**named, **{**flat_dimensions(self), **changes})

    @cached_property
    def base(self) -> ModelSpec:
        """The same model, all of which trains, without additions: what a checkpoint of Hugging Face holds."""
        if not self.is_adapted:
            return self
        return replace(self, trained=(), lora_rank=0, lora_alpha=0.0, lora_targets=())

    def num_block_parameters(self, block: int = 0) -> int:
        """Parameters of one block, all its experts included."""
        return self._block_counts[block]

    @cached_property
    def _block_counts(self) -> tuple[int, ...]:
        found: list[int] = []
        for first, _, count in self.runs():
            found += [parameter.num_block_parameters(self, first)] * count
        return tuple(found)

    def block_kind(self, block: int) -> BlockKind:
        """What kind of block number `block` is."""
        return self._kinds[block]

    def block_kinds(self, first: int, count: int) -> tuple[tuple[int, int], ...]:
        """Of blocks first .. first + count - 1: one block of each kind, and how many there are of it."""
        if len(self.blocks) == 1 and not self.trained:
            return ((first, count),) if count else ()
        found: dict[int, tuple[int, int]] = {}
        for block in range(first, first + count):
            kind = self._kind_numbers[block]
            found[kind] = (found[kind][0], found[kind][1] + 1) if kind in found else (block, 1)
        return tuple(found.values())

    @cached_property
    def _kinds(self) -> tuple[BlockKind, ...]:
        trained = (trained_names(self, i) if self.is_adapted else None for i in range(self.num_layers))
        return tuple(map(BlockKind, self.layers, trained))

    @cached_property
    def _kind_numbers(self) -> tuple[int, ...]:
        """Of every block the number of its kind: kinds are compared once."""
        number: dict[BlockKind, int] = {}
        return tuple(number.setdefault(kind, len(number)) for kind in self._kinds)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not at their defaults as plain values, for files; `from_dict` reads them back."""
        return {**plain(self), "blocks": written_blocks(self.layers)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], where: str = "model") -> ModelSpec:
        """Read what `to_dict` wrote, or flat dimensions. Raises SpecError on fields that do not fit."""
        if "blocks" not in fields:
            names = ("name", "architecture", "source")
            dimensions = {key: value for key, value in fields.items() if key not in names}
            return cls(**{name: fields.get(name, "") for name in names}, **shape_fields(where, dimensions))
        rest = {key: value for key, value in fields.items() if key != "blocks"}
        return record(cls, rest, where, blocks=read_blocks(fields["blocks"], where))
