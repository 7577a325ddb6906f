"""The training job: which model is trained on which data, with which optimizer.

Shapes: B samples of a microbatch, S tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.executor.corpus import Corpus
from meshwright.executor.handler import ValueName
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.randomness import keyed_generator, random_key
from meshwright.ir.program import Program
from meshwright.lowering.stage_edge import (
    SKIP,
    SKIP_GRADIENT,
    LayerEdge,
    StageEdge,
    encoder_edges,
    skip_edges,
)
from meshwright.specs.error import ExecutionError
from meshwright.specs.model import ModelSpec

STANDARD_LIBRARY = "standard_library"
RANDOM = "random"


class Batches(Protocol):
    """Where samples come from: a function of (seed, step, sample) and of nothing else."""

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS."""


@dataclass(frozen=True)
class RandomTokens:
    """Tokens drawn by (seed, step, sample): for tests and benchmarks."""

    vocabulary_size: int

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS, uniform."""
        rows = [
            torch.randint(
                self.vocabulary_size,
                (sequence_length + 1,),
                generator=keyed_generator(random_key(seed, step, sample, "tokens")),
            )
            for sample in samples
        ]
        window = torch.stack(rows)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()


@dataclass(frozen=True)
class Training:
    """What a training job is besides its program. ``data``: "standard_library", "random", or a folder or file of text.

    ``data_axes``: axes along which the data differ. ``records_gradients``: return every gradient of every iteration.
    ``layer_edges``: layers that read the outputs of earlier layers (long skips); ``num_encoder_layers``: the first layers
    are an encoder's, the others attend to its output, and the loss is over the second half of each window. Either needs a
    program with the edges that `stage_edges` gives (`ConnectStages`).
    ``first_step``: number of the first iteration, which keys the data. An optimizer that clips needs a program that sums the
    norm of all ranks (`ClipGradients`).
    """

    model: ModelSpec
    layers_per_stage: tuple[int, ...]
    sequence_length: int
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(clip_norm=None))
    data: str = STANDARD_LIBRARY
    seed: int = 0
    dropout: float = 0.0
    first_step: int = 0
    data_axes: tuple[str, ...] = ("dp",)
    records_gradients: bool = False
    records_parameters: bool = True
    layer_edges: tuple[LayerEdge, ...] = ()
    num_encoder_layers: int = 0

    def __post_init__(self) -> None:
        if sum(self.layers_per_stage) != self.model.num_layers:
            raise ExecutionError(
                f"stages of {self.layers_per_stage} layers hold {sum(self.layers_per_stage)}",
                allowed=f"the model's {self.model.num_layers}",
            )
        if self.num_encoder_layers and (self.layer_edges or self.sequence_length % 2):
            raise ExecutionError(
                f"an encoder-decoder with {len(self.layer_edges)} long skips, windows of {self.sequence_length}",
                allowed="no long skips, and windows of an even number of tokens",
            )

    def stage_edges(self) -> tuple[StageEdge, ...]:
        """What its stages read of each other beside the path. Raises PlanError where the layers cannot be cut like this."""
        if self.num_encoder_layers:
            return encoder_edges(self.num_encoder_layers, self.layers_per_stage)
        return skip_edges(self.layer_edges, self.layers_per_stage)

    @property
    def tokens_per_target(self) -> int:
        """Tokens of a window for each that the loss is over."""
        return 2 if self.num_encoder_layers else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**asdict(self), "model": self.model.to_dict()}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Training:
        """Read what `to_dict` wrote."""
        given = dict(fields)
        optimizer = {**given["optimizer"], "betas": tuple(given["optimizer"]["betas"])}
        return Training(
            **{
                **given,
                "model": ModelSpec.from_dict(given["model"]),
                "optimizer": OptimizerConfig(**optimizer),
                "layers_per_stage": tuple(given["layers_per_stage"]),
                "data_axes": tuple(given["data_axes"]),
                "layer_edges": tuple(LayerEdge(*edge) for edge in given["layer_edges"]),
            }
        )

    def batches(self) -> Batches:
        """The source of samples."""
        if self.data == RANDOM:
            return RandomTokens(self.model.vocabulary_size)
        return Corpus.standard_library() if self.data == STANDARD_LIBRARY else Corpus.folder(Path(self.data))

    def sample_counts(self, program: Program) -> list[int]:
        """Samples of every microbatch of one replica.

        Raises:
            ExecutionError: the tokens of a microbatch are no whole number of sequences.
        """
        counts = []
        for number, microbatch in enumerate(program.tables.microbatches):
            count, rest = divmod(microbatch.tokens, self.sequence_length)
            if rest or count < 1:
                raise ExecutionError(
                    f"microbatch {number} has {microbatch.tokens} tokens",
                    allowed=f"whole sequences of {self.sequence_length}",
                )
            counts.append(count)
        return counts

    def shape_of(self, counts: Sequence[int], name: ValueName) -> tuple[int, ...] | None:
        """Shape of what stages exchange: hidden states and their gradients, [B, S, E]."""
        if name.kind not in ("activation", "gradient", SKIP.name, SKIP_GRADIENT.name):
            return None
        length = self.sequence_length // self.tokens_per_target
        return (counts[name.microbatch], length, self.model.hidden_size)
