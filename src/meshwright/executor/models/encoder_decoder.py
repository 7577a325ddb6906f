"""An encoder-decoder cut into stages: the encoder reads the first half of a window, the decoder continues it.

Shapes: B samples, S tokens of a window, H = S / 2 tokens of each half, E hidden size, V vocabulary.

The blocks are those of the decoder; the encoder's attend without a mask, the decoder's attend, between their two parts, to
the encoder's output (Vaswani et al., "Attention Is All You Need", 2017, arXiv 1706.03762). Continuing a prefix is the task
of T5's language models (Lester et al., 2021, arXiv 2104.08691). Tied embeddings are one table for encoder, decoder and head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from meshwright.executor.capability import check_model
from meshwright.executor.models.block import Block, norm_layer
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, DecoderStage, fill_parameters
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.full_attention import cross_attention, full_attention
from meshwright.executor.ops.attention.rotary import Rotation
from meshwright.executor.ops.embedding import SplitEmbedding
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

TARGET_EMBEDDING_WEIGHT = "target_embedding.weight"


class EncoderBlock(Block):
    """A block whose tokens see each other."""

    def attend(self, qkv: Tensor, turn: Rotation | None, documents: DocumentMask | None = None) -> Tensor:
        """Attention without a mask; documents are refused where data and training meet (`Training.batches`)."""
        return full_attention(qkv, self.layout, turn)


class CrossBlock(Block):
    """A decoder's block that attends to the encoder's output between its self-attention and its MLP."""

    def __init__(self, model: ModelSpec, layer: int, dropout: float = 0.0) -> None:
        super().__init__(model, layer, dropout)
        hidden, key_size = model.hidden_size, self.layout.key_size
        self.cross_norm = norm_layer(model, hidden)
        self.cross_query = SplitLinear(hidden, self.layout.query_size, bias=False)
        self.cross_key_value = SplitLinear(hidden, 2 * key_size, bias=False)
        self.cross_attention_output = SplitLinear(self.layout.query_size, hidden, bias=False)

    def with_encoded(
        self, x_BHE: Tensor, turn: Rotation | None, keys: SampleKeys | None, encoded_BHE: Tensor
    ) -> Tensor:
        """x_BHE -> the same shape."""
        x_BHE = self.attention_part(x_BHE, turn, keys)
        query = self.cross_query(self.cross_norm(x_BHE))
        attended = cross_attention(query, self.cross_key_value(encoded_BHE), self.layout)
        x_BHE = x_BHE + self.dropped(self.cross_attention_output(attended), keys, "cross_attention")
        return self.mlp_part(x_BHE, keys)


class EncoderDecoderStage(DecoderStage):
    """Consecutive layers of the encoder or of the decoder; `build_encoder_decoder_stage` makes one.

    Layers are numbered through: the decoder's begin at `num_encoder_layers`. The decoder's first stage has the encoder's
    output from the path, and embeds its own tokens; later ones receive it beside the path.
    """

    def __init__(
        self,
        model: ModelSpec,
        layers: range,
        has_embedding: bool,
        has_head: bool,
        dropout: float,
        num_encoder_layers: int,
    ) -> None:
        super().__init__(model, range(0), has_embedding, has_head, dropout)
        self.is_encoder, self.begins_decoder = (
            layers.stop <= num_encoder_layers,
            layers.start == num_encoder_layers,
        )
        kind = EncoderBlock if self.is_encoder else CrossBlock
        self.layers = nn.ModuleDict({str(layer): kind(model, layer, dropout) for layer in layers})
        self.encoder_norm = (
            norm_layer(model, model.hidden_size) if layers.stop == num_encoder_layers else None
        )
        has_targets, rows = self.begins_decoder, model.vocabulary_size
        self.target_embedding = SplitEmbedding(rows, model.hidden_size) if has_targets else None
        self.has_tied_tables = model.has_tied_embeddings

    def with_edges(
        self, x: Tensor, keys: SampleKeys | None, received: Sequence[Tensor], tokens_BS: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states of this half (logits with the head), and what later stages read.

        x: what came along the path, ignored where the encoder begins. `received`: the encoder's output, on the decoder's
        stages but the first. tokens_BS: of whole windows.
        """
        first_BH, second_BH = tokens_BS.chunk(2, -1)
        if self.is_encoder:
            return self._encoded(x if self.embedding is None else self.embedding(first_BH), keys)
        if self.target_embedding is not None:
            encoded, x = x, self.target_embedding(second_BH)
        else:
            (encoded,) = received
        turn = self.turn(x.shape[1], x.dtype, x.device)
        for block in self.layers.values():
            assert isinstance(block, CrossBlock)
            x = block.with_encoded(x, turn, keys, encoded)
        if self.final_norm is not None and self.head is not None:
            x = self.head(self.final_norm(x))
        return x, ()

    def _encoded(self, x_BHE: Tensor, keys: SampleKeys | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        turn = self.turn(x_BHE.shape[1], x_BHE.dtype, x_BHE.device)
        for block in self.layers.values():
            x_BHE = block(x_BHE, turn, keys)
        if self.encoder_norm is None:
            return x_BHE, ()
        x_BHE = self.encoder_norm(x_BHE)
        return x_BHE, (x_BHE,)

    def global_name(self, name: str) -> str:
        """Name in the whole model; every use of a tied table is "embedding.weight"."""
        is_use = self.has_tied_tables and name == TARGET_EMBEDDING_WEIGHT
        return EMBEDDING_WEIGHT if is_use else super().global_name(name)

    def use_table(self, table: nn.Parameter) -> None:
        """Let every use of a tied table here be this parameter."""
        super().use_table(table)
        if self.has_tied_tables and self.target_embedding is not None:
            self.target_embedding.weight = table


def build_encoder_decoder_stage(
    model: ModelSpec,
    layers: range,
    has_embedding: bool,
    has_head: bool,
    num_encoder_layers: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
) -> EncoderDecoderStage:
    """The stage with these layers, its parameters at their first values.

    Raises ExecutionError for a model with learned positions or latent attention, SpecError as `build_stage`.
    """
    check_model(model)
    if model.has_learned_positions:
        raise ExecutionError(
            f"{model.name} has learned positions", allowed="rotary ones in an encoder-decoder"
        )
    if model.attention.latent:
        raise ExecutionError(
            f"{model.name} has latent attention",
            allowed="queries, keys and values by heads in an encoder-decoder",
        )
    with torch.device("meta"):
        stage = EncoderDecoderStage(model, layers, has_embedding, has_head, dropout, num_encoder_layers)
    fill_parameters(stage, model.num_layers, seed, dtype, device)
    if stage.target_embedding is not None:
        stage.use_table(stage.target_embedding.get_parameter("weight"))
    return stage
