"""A decoder with long skips, U-shaped where early layers feed late ones: blocks read the outputs of earlier blocks.

Shapes: B samples, S tokens, E hidden size, V vocabulary, N outputs that a block reads besides its input.

A block that reads earlier outputs works on a linear map of its input and these, [B, S, (1 + N) E] -> [B, S, E], as the
long skips of U-ViT do (Bao et al., "All are Worth Words", 2022, arXiv 2209.12152).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from meshwright.executor.capability import check_model
from meshwright.executor.models.decoder import DecoderStage, fill_parameters
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.lowering.transfer.stage_edge import LayerEdge
from meshwright.specs.model.model import ModelSpec


class SkipStage(DecoderStage):
    """Consecutive blocks of a decoder with long skips; `build_skip_stage` makes one.

    ``received`` and ``given``: layers elsewhere whose outputs its blocks read, and own layers whose outputs are read
    elsewhere, both in rising order, as the edges between stages are.
    """

    def __init__(
        self,
        model: ModelSpec,
        layers: range,
        has_embedding: bool,
        has_head: bool,
        dropout: float,
        edges: Sequence[LayerEdge],
    ) -> None:
        super().__init__(model, layers, has_embedding, has_head, dropout)
        self.sources = {t: sorted(e.source for e in edges if e.target == t) for t in layers}
        self.received = tuple(sorted({s for found in self.sources.values() for s in found} - set(layers)))
        self.given = tuple(sorted({e.source for e in edges if e.source in layers and e.target not in layers}))
        self.kept = {e.source for e in edges if e.source in layers}
        hidden = model.hidden_size
        self.joins = nn.ModuleDict(
            {
                str(layer): SplitLinear((1 + len(found)) * hidden, hidden, bias=False)
                for layer, found in self.sources.items()
                if found
            }
        )

    def with_edges(
        self,
        x: Tensor,
        keys: SampleKeys | None,
        received: Sequence[Tensor],
        documents_BS: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As `forward`, with the outputs of the layers `received`; returns also those of the layers `given`."""
        documents = None if documents_BS is None else DocumentMask(documents_BS)
        x, turn = self.begin(x, documents)
        outputs = dict(zip(self.received, received, strict=True))
        for layer, block in ((int(name), block) for name, block in self.layers.items()):
            if self.sources[layer]:
                x = self.joins[str(layer)](torch.cat([x, *(outputs[s] for s in self.sources[layer])], -1))
            x = block(x, turn, keys, documents)
            if layer in self.kept:
                outputs[layer] = x
        given = tuple(outputs[layer] for layer in self.given)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return (x if self.head is None else self.head(x)), given


def build_skip_stage(
    model: ModelSpec,
    layers: range,
    has_embedding: bool,
    has_head: bool,
    edges: Sequence[LayerEdge],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
) -> SkipStage:
    """The stage with blocks `layers`, its parameters at their first values. Raises SpecError as `build_stage`."""
    check_model(model)
    with torch.device("meta"):
        stage = SkipStage(model, layers, has_embedding, has_head, dropout, edges)
    fill_parameters(stage, model.num_layers, seed, dtype, device)
    return stage
