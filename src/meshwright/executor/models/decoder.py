"""A decoder cut into stages: a stage holds some blocks, and perhaps the embedding and the head.

Shapes: B samples, S tokens, E hidden size, V vocabulary.

    stage = build_stage(model, range(0, 4), has_embedding=True, has_head=False)
    hidden_BSE = stage(tokens_BS)

Names of parameters are those of the whole model ("layers.7.qkv.weight"), and their first values depend on
seed and name only, so the stages of any partition hold bitwise the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from meshwright.executor.capability import check_model
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.models.block import Block, norm_layer
from meshwright.executor.models.part.ladder_residual import apart, beside, run_branches, run_ladder
from meshwright.executor.models.tensor_parallel import TensorParallel, VocabularyEmbedding
from meshwright.executor.models.weights.initialisation import ParameterSource, RandomValues
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.rotary import Rotation, rotation, turned_at
from meshwright.executor.ops.embedding import SplitEmbedding
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.executor.ops.token_places import token_places
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.adaptation import trains
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.sequence.packed_part import PackedPart
from meshwright.specs.sequence.sequence_part import OwnTokens

EMBEDDING_WEIGHT = "embedding.weight"
HEAD_WEIGHT = "head.weight"


def table(model: ModelSpec, parallel: TensorParallel | None) -> nn.Embedding:
    """The embedding, or this device's rows of it."""
    if parallel is None or parallel.team.degree == 1:
        return SplitEmbedding(model.vocabulary_size, model.hidden_size)
    return VocabularyEmbedding(-(-model.vocabulary_size // parallel.team.degree), model.hidden_size, parallel)


class DecoderStage(nn.Module):
    """Consecutive blocks of `model`; `build_stage` makes one.

    `is_tied` is True where the head uses the table of the embedding. On one stage they are then one
    parameter; a stage with the head only holds a copy, whose gradient is to be summed with the original's.
    Without `has_tables` embedding and head are elsewhere (`vocabulary_shard`): only their positions and norm are here.
    """

    def __init__(
        self,
        model: ModelSpec,
        layers: range,
        has_embedding: bool,
        has_head: bool,
        dropout: float,
        has_tables: bool = True,
        parallel: TensorParallel | None = None,
    ) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.model, self.has_embedding, self.has_head = model, has_embedding, has_head
        self.parallel = parallel
        self.is_tied = has_head and has_tables and model.has_tied_embeddings
        has_table, has_own_head = has_embedding and has_tables, has_head and has_tables
        self.embedding = table(model, parallel) if has_table else None
        has_positions = has_embedding and model.has_learned_positions
        self.positions = SplitEmbedding(model.max_sequence_length, hidden) if has_positions else None
        self.layers = nn.ModuleDict({str(layer): Block(model, layer, dropout, parallel) for layer in layers})
        self.final_norm = norm_layer(model, hidden) if has_head else None
        num_rows = -(-model.vocabulary_size // (1 if parallel is None else parallel.team.degree))
        self.head = SplitLinear(hidden, num_rows, False) if has_own_head else None
        self._rotations: dict[tuple[int, torch.dtype, torch.device], Rotation] = {}

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, documents_BS: Tensor | None = None
    ) -> Tensor:
        """tokens_BS (integers) with the embedding, hidden_BSE otherwise -> logits_BSV with the head, hidden_BSE
        otherwise. `keys` name the samples for dropout; without them there is none (evaluation). documents_BS: for every
        token of the sequence the place where its document begins; attention and positions are then a document's own.
        """
        documents = None if documents_BS is None else DocumentMask(documents_BS)
        late = None
        if self.model.hands_on_results and not self.has_embedding:
            x, late = apart(x)
        x, turn = self.begin(x, documents)
        if self.model.hands_on_results:
            x = self._climbed(x, late, turn, keys, documents)
        else:
            for block in self.layers.values():
                x = block(x, turn, keys, documents)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x if self.head is None else self.head(x)

    def _climbed(
        self,
        x_BSE: Tensor,
        late_BSE: Tensor | None,
        turn: Rotation | None,
        keys: SampleKeys | None,
        documents: DocumentMask | None,
    ) -> Tensor:
        """Behind the blocks of a ladder residual or parallel branches: the whole stream with the head, else with what it
        lacks beside it."""
        parts: list[Callable[[Tensor], Tensor]] = []
        for block in self.layers.values():
            assert isinstance(block, Block), "such streams are of plain decoders"
            parts.append(partial(block.attention_result, turn=turn, keys=keys, documents=documents))
            parts.append(partial(block.mlp_result, keys=keys))
        run = run_branches if self.model.has_parallel_branches else run_ladder
        x_BSE, late_BSE = run(x_BSE, late_BSE, parts)
        if not self.has_head:
            return beside(x_BSE, late_BSE)
        return x_BSE if late_BSE is None else x_BSE + late_BSE

    def global_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their name in the whole model; a tied head is "embedding.weight" wherever it is."""
        return {self.global_name(name): parameter for name, parameter in self.named_parameters()}

    def global_name(self, name: str) -> str:
        """Name in the whole model of a parameter of this stage."""
        return EMBEDDING_WEIGHT if self.is_tied and name == HEAD_WEIGHT else name

    def use_table(self, table: nn.Parameter) -> None:
        """Let a tied head here be this parameter."""
        if self.is_tied and self.head is not None:
            self.head.weight = table

    def begin(
        self, x: Tensor, documents: DocumentMask | None = None, part: OwnTokens | None = None
    ) -> tuple[Tensor, Rotation | None]:
        """Hidden states in front of the first block here, and how positions turn. `part`: which tokens of the sequence this
        rank has (None: all), whose turns these then are; `documents` are of the whole sequence."""
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.with_positions(x, documents, part)
        length = x.shape[1] if part is None else part.sequence_length
        return x, self.turn(length, x.dtype, x.device, documents, part)

    def with_positions(
        self, x_BSE: Tensor, documents: DocumentMask | None = None, part: OwnTokens | None = None
    ) -> Tensor:
        """Embedded tokens and the learned positions, where the model has them."""
        if self.positions is None:
            return x_BSE
        number, num_parts = (0, 1) if self.parallel is None else self.parallel.part
        if part is None:
            places_S = torch.arange(x_BSE.shape[1] * num_parts, device=x_BSE.device)
        else:
            places_S = token_places(part, x_BSE.device)
        places_S = places_S.chunk(num_parts)[number]
        places = places_S if documents is None else documents.positions_BS[:, places_S]
        found: Tensor = x_BSE + self.positions(places)
        return found

    def turn(
        self,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
        documents: DocumentMask | None = None,
        part: OwnTokens | None = None,
    ) -> Rotation | None:
        """How the positions of a sequence of `length` tokens turn, of `part` its own; the table is made once."""
        if self.model.has_learned_positions:
            return None
        if isinstance(part, PackedPart):
            length = part.num_positions
        key, model = (length, dtype, device), self.model
        if key not in self._rotations:
            self._rotations[key] = rotation(
                length, model.attention.turned_dim, model.rope_theta, dtype, device, model.rotary_scaling
            )
        turn = self._rotations[key]
        if part is not None:
            places_S = token_places(part, device)
            return turned_at(
                turn, places_S[None] if documents is None else documents.positions_BS[:, places_S]
            )
        return turn if documents is None else turned_at(turn, documents.positions_BS)


def build_stage(
    model: ModelSpec,
    layers: range,
    has_embedding: bool,
    has_head: bool,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
    has_tables: bool = True,
    parallel: TensorParallel | None = None,
    source: ParameterSource | None = None,
) -> DecoderStage:
    """The stage with blocks `layers` of `model`, its parameters at their first values; with `parallel` this device's part.
    The values are `source`'s, which is asked for those of this stage only; without one they are drawn by `seed`.

    Raises ExecutionError for layers the model does not have, SpecError for blocks that are not built here.
    """
    check_model(model)
    if len(layers) and not 0 <= min(layers) <= max(layers) < model.num_layers:
        raise ExecutionError(
            f"a stage of layers {min(layers)} to {max(layers)}", allowed=f"0 to {model.num_layers - 1}"
        )
    with torch.device("meta"):
        stage = DecoderStage(model, layers, has_embedding, has_head, dropout, has_tables, parallel)
    fill_parameters(stage, model.num_layers, seed, dtype, device, source)
    return stage


def fill_parameters(
    stage: DecoderStage,
    num_layers: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
    source: ParameterSource | None = None,
) -> None:
    """Give the parameters of a stage of a model of `num_layers` layers their first values, and its constants theirs, in
    float32 at least; a table is one parameter."""
    shard = TensorShard(stage.model) if stage.parallel is None else stage.parallel.shard
    values = RandomValues(num_layers, seed) if source is None else source
    for prefix, module in stage.named_modules():
        for attribute, constant in module.named_buffers(recurse=False):
            wide = torch.promote_types(dtype, torch.float32)
            value = values.value(f"{prefix}.{attribute}", tuple(constant.shape), wide).to(device)
            setattr(module, attribute, nn.Buffer(value))
    for slot, module, attribute, shape in _parameter_slots(stage):
        name = stage.global_name(slot)
        whole = values.value(name, shard.whole_shape(name, shape), dtype)
        value = shard.local(name, whole).to(device)
        setattr(module, attribute, nn.Parameter(value, requires_grad=trains(stage.model, name)))
    if stage.embedding is not None:
        stage.use_table(stage.embedding.get_parameter("weight"))


def build_model(
    model: ModelSpec,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
) -> DecoderStage:
    """The whole model as one stage."""
    return build_stage(model, range(model.num_layers), True, True, dtype, seed, dropout, device)


def _parameter_slots(stage: nn.Module) -> list[tuple[str, nn.Module, str, tuple[int, ...]]]:
    """(name, owner, attribute, shape) of every parameter."""
    return [
        (f"{prefix}.{attribute}", module, attribute, tuple(parameter.shape))
        for prefix, module in stage.named_modules()
        for attribute, parameter in module.named_parameters(recurse=False)
    ]
