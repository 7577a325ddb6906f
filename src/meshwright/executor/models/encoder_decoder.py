"""An encoder-decoder cut into stages: the encoder reads the first half of a window, the decoder continues it.

Shapes: B samples, S tokens of a window, H = S / 2 tokens of each half, E hidden size, V vocabulary.

The blocks are those of the decoder; the encoder's attend without a mask, the decoder's attend, between their two parts, to
the encoder's output (Vaswani et al., "Attention Is All You Need", 2017, arXiv 1706.03762). Continuing a prefix is the task
of T5's language models (Lester et al., 2021, arXiv 2104.08691). Tied embeddings are one table for encoder, decoder and head.
Between stages of the decoder its stream and the encoder's output go as one tensor, [B, H, 2 E].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meshwright.executor.capability import check_model
from meshwright.executor.models.block import Block, norm_layer
from meshwright.executor.models.decoder import EMBEDDING_WEIGHT, DecoderStage, fill_parameters, table
from meshwright.executor.models.part.ladder_residual import apart, beside
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.models.weights.initialisation import ParameterSource
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.full_attention import cross_attention, full_attention
from meshwright.executor.ops.attention.rotary import Rotation
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.specs.model.layers import StageLayers, begins_decoder, ends_encoder
from meshwright.specs.model.model import ModelSpec

TARGET_EMBEDDING_WEIGHT = "target_embedding.weight"


class EncoderBlock(Block):
    """A block whose tokens see each other."""

    def attend(self, qkv: Tensor, turn: Rotation | None, documents: DocumentMask | None = None) -> Tensor:
        """Attention without a mask; documents are refused where data and training meet (`Training.batches`)."""
        return full_attention(qkv, self.layout, turn)


class CrossBlock(Block):
    """A decoder's block that attends to the encoder's output between its self-attention and its MLP."""

    def __init__(
        self, model: ModelSpec, layer: int, dropout: float = 0.0, parallel: TensorParallel | None = None
    ) -> None:
        super().__init__(model, layer, dropout, parallel)
        hidden, layout = model.hidden_size, self.layout
        self.cross_norm = norm_layer(model, hidden)
        self.cross_query = SplitLinear(hidden, layout.query_size, bias=False)
        self.cross_key_value = SplitLinear(hidden, 2 * layout.key_size, bias=False)
        self.cross_attention_output = SplitLinear(layout.query_size, hidden, bias=False)

    def crossed(self, query: Tensor, key_value: Tensor) -> Tensor:
        """Cross attention of what both products give, in front of the last one."""
        return cross_attention(query, key_value, self.layout)

    def with_encoded(
        self, x_BHE: Tensor, turn: Rotation | None, keys: SampleKeys | None, encoded_BHE: Tensor
    ) -> Tensor:
        """x_BHE -> the same shape."""
        x_BHE = self.attention_part(x_BHE, turn, keys)
        attended = self.crossed(self.cross_query(self.cross_norm(x_BHE)), self.cross_key_value(encoded_BHE))
        x_BHE = x_BHE + self.dropped(self.cross_attention_output(attended), keys, "cross_attention")
        return self.mlp_part(x_BHE, keys)


BLOCKS: Mapping[str, type[Block]] = {"": Block, "encoder": EncoderBlock, "decoder": CrossBlock}


class EncoderDecoderStage(DecoderStage):
    """Consecutive layers of the encoder, of the decoder, or of both; `build_encoder_decoder_stage` makes one.

    Layers are numbered through: the decoder's begin at the model's `num_encoder_layers`. The stage with the encoder's last
    block has a norm behind it, the one with the decoder's first a table of its own.
    """

    def __init__(
        self,
        model: ModelSpec,
        layers: range,
        has_embedding: bool,
        has_head: bool,
        dropout: float,
        parallel: TensorParallel | None = None,
    ) -> None:
        super().__init__(model, range(0), has_embedding, has_head, dropout, parallel=parallel)
        held = StageLayers(layers.start, len(layers), has_embedding, has_head)
        number = model.num_encoder_layers
        self.first_layer = layers.start
        self.layers = nn.ModuleDict(
            {str(i): BLOCKS[model.layers[i].half](model, i, dropout, parallel) for i in layers}
        )
        self.encoder_norm = norm_layer(model, model.hidden_size) if ends_encoder(held, number) else None
        self.target_embedding = table(model, parallel) if begins_decoder(held, number) else None

    def of_windows(self, x: Tensor, keys: SampleKeys | None, tokens_BS: Tensor) -> Tensor:
        """What the next stage gets, logits with the head. x: what came along the path, tokens where the encoder begins.
        tokens_BS: of whole windows."""
        first_BH, second_BH = tokens_BS.chunk(2, -1)
        is_behind = self.first_layer > self.model.num_encoder_layers
        x, encoded = apart(x) if is_behind else (x, x)
        if self.embedding is not None:
            x = self.embedding(first_BH)
        turn = self.turn(first_BH.shape[1], x.dtype, x.device)
        for block in self.layers.values():
            if isinstance(block, EncoderBlock):
                x = block(x, turn, keys)
        if self.encoder_norm is not None:
            x = encoded = self.encoder_norm(x)
        if self.target_embedding is not None:
            x = self.target_embedding(second_BH)
        for block in self.layers.values():
            if isinstance(block, CrossBlock):
                x = block.with_encoded(x, turn, keys, encoded)
        if self.final_norm is not None and self.head is not None:
            logits: Tensor = self.head(self.final_norm(x))
            return logits
        return beside(x, encoded) if is_behind or self.target_embedding is not None else x

    def global_name(self, name: str) -> str:
        """Name in the whole model; every use of a tied table is "embedding.weight"."""
        is_use = self.model.has_tied_embeddings and name == TARGET_EMBEDDING_WEIGHT
        return EMBEDDING_WEIGHT if is_use else super().global_name(name)

    def use_table(self, table: nn.Parameter) -> None:
        """Let every use of a tied table here be this parameter."""
        super().use_table(table)
        if self.model.has_tied_embeddings and self.target_embedding is not None:
            self.target_embedding.weight = table


def build_encoder_decoder_stage(
    model: ModelSpec,
    layers: range,
    has_embedding: bool,
    has_head: bool,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
    parallel: TensorParallel | None = None,
    source: ParameterSource | None = None,
) -> EncoderDecoderStage:
    """The stage with these layers, its parameters at their first values, as `build_stage` makes one of a decoder."""
    check_model(model)
    with torch.device("meta"):
        stage = EncoderDecoderStage(model, layers, has_embedding, has_head, dropout, parallel)
    fill_parameters(stage, model.num_layers, seed, dtype, device, source)
    if stage.target_embedding is not None:
        stage.use_table(stage.target_embedding.get_parameter("weight"))
    return stage
