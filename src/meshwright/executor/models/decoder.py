"""A decoder cut into stages: a stage holds some blocks, and perhaps the embedding and the head.

Shapes: B samples, S tokens, E hidden size, V vocabulary.

    stage = build_stage(model, range(0, 4), has_embedding=True, has_head=False)
    hidden_BSE = stage(tokens_BS)

Names of parameters are those of the whole model ("layers.7.qkv.weight"), and their first values depend on
seed and name only, so the stages of any partition hold bitwise the same parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meshwright.executor.models.block import Block, norm_layer
from meshwright.executor.models.initialisation import initial_value
from meshwright.executor.ops.embedding import SplitEmbedding
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.rotary import Rotation, rotation
from meshwright.executor.randomness import SampleKeys
from meshwright.specs.error import ExecutionError
from meshwright.specs.model import ModelSpec

EMBEDDING_WEIGHT = "embedding.weight"
HEAD_WEIGHT = "head.weight"


class Stage(nn.Module):
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
    ) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.model, self.has_embedding, self.has_head = model, has_embedding, has_head
        self.is_tied = has_head and has_tables and model.has_tied_embeddings
        has_table, has_own_head = has_embedding and has_tables, has_head and has_tables
        self.embedding = SplitEmbedding(model.vocabulary_size, hidden) if has_table else None
        has_positions = has_embedding and model.has_learned_positions
        self.positions = SplitEmbedding(model.max_sequence_length, hidden) if has_positions else None
        self.layers = nn.ModuleDict({str(layer): Block(model, layer, dropout) for layer in layers})
        self.final_norm = norm_layer(model, hidden) if has_head else None
        self.head = SplitLinear(hidden, model.vocabulary_size, bias=False) if has_own_head else None
        self._rotations: dict[tuple[int, torch.dtype, torch.device], Rotation] = {}

    def forward(self, x: Tensor, keys: SampleKeys | None = None) -> Tensor:
        """tokens_BS (integers) with the embedding, hidden_BSE otherwise -> logits_BSV with the head, hidden_BSE
        otherwise. `keys` name the samples for dropout; without them there is none (evaluation).
        """
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        turn = None if self.model.has_learned_positions else self._rotation(x)
        for block in self.layers.values():
            x = block(x, turn, keys)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x if self.head is None else self.head(x)

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

    def _rotation(self, x_BSE: Tensor) -> Rotation:
        """The table for this length, made once."""
        key = (x_BSE.shape[1], x_BSE.dtype, x_BSE.device)
        if key not in self._rotations:
            self._rotations[key] = rotation(key[0], self.model.head_dim, self.model.rope_theta, *key[1:])
        return self._rotations[key]


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
) -> Stage:
    """The stage with blocks `layers` of `model`, its parameters at their first values.

    Raises ExecutionError for layers the model does not have, SpecError for blocks that are not built here.
    """
    model.check_executable()
    if len(layers) and not 0 <= min(layers) <= max(layers) < model.num_layers:
        raise ExecutionError(
            f"a stage of layers {min(layers)} to {max(layers)}", allowed=f"0 to {model.num_layers - 1}"
        )
    with torch.device("meta"):
        stage = Stage(model, layers, has_embedding, has_head, dropout, has_tables)
    fill_parameters(stage, model.num_layers, seed, dtype, device)
    return stage


def fill_parameters(
    stage: Stage, num_layers: int, seed: int, dtype: torch.dtype, device: torch.device | str
) -> None:
    """Give the parameters of a stage of a model of `num_layers` layers their first values; a table is one parameter."""
    for name, module, attribute, shape in _parameter_slots(stage):
        value = initial_value(stage.global_name(name), shape, num_layers, seed, dtype).to(device)
        setattr(module, attribute, nn.Parameter(value))
    if stage.embedding is not None:
        stage.use_table(stage.embedding.get_parameter("weight"))


def build_model(
    model: ModelSpec,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    dropout: float = 0.0,
    device: torch.device | str = "cpu",
) -> Stage:
    """The whole model as one stage."""
    return build_stage(model, range(model.num_layers), True, True, dtype, seed, dropout, device)


def _parameter_slots(stage: nn.Module) -> list[tuple[str, nn.Module, str, tuple[int, ...]]]:
    """(name, owner, attribute, shape) of every parameter."""
    return [
        (f"{prefix}.{attribute}", module, attribute, tuple(parameter.shape))
        for prefix, module in stage.named_modules()
        for attribute, parameter in module.named_parameters(recurse=False)
    ]
