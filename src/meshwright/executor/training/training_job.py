"""The training job: which model is trained on which data, with which optimizer.

Shapes: B samples of a microbatch, S tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.executor.data.data_source import (
    check_source,
    has_documents,
    opened,
    prepared_source,
    source_digest,
    whole_sequences,
)
from meshwright.executor.data.packing import SampleCount
from meshwright.executor.data.whole_sequence import WholeSequences
from meshwright.executor.models.chain.relay_shape import RELAYED, relayed_shape, token_part
from meshwright.executor.models.weights.initialisation import parameter_source
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.ops.relay.visiting_queries import wide_numbers
from meshwright.executor.rank.handler import ValueName
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.ir.core_vocabulary import SKIP, SKIP_GRADIENT
from meshwright.ir.program import Program
from meshwright.lowering.transfer.stage_edge import (
    LayerEdge,
    StageEdge,
    skip_edges,
)
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.layers import stage_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.record import record
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.training.expert_capacity import PROBABILITY, ExpertCapacity
from meshwright.specs.training.learning_rate import LearningRate
from meshwright.specs.training.router_losses import RouterLosses
from meshwright.specs.training.source import Source
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import InnerDegrees, of_groups

RANDOM = Source("random")  # tokens that are drawn, for tests and benchmarks; nothing is read
HELD_OUT_STEP = -1  # of random tokens: no step of a training has this number


class Batches(Protocol):
    """Where samples come from: a function of (seed, step, sample) and of nothing else."""

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS."""

    def held_out_windows(
        self, samples: Sequence[int], num_samples: int, sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS of some of ``num_samples`` windows of the held-out part, always the same ones."""


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

    def held_out_windows(
        self, samples: Sequence[int], num_samples: int, sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS that no step of a training draws."""
        return self.batch(0, HELD_OUT_STEP, samples, sequence_length)


@dataclass(frozen=True)
class TrainingConfig:
    """What a training job is besides its program. ``source``: what is read, or drawn (`RANDOM`). ``first_sample``: samples
    of shards consumed before ``first_step``; None: as many as steps before it would have consumed.

    ``data_axes``: axes along which the data differ, cp among them. ``records_gradients``: return every gradient of every
    iteration.
    ``layer_edges``: layers that read the outputs of earlier layers (long skips): the program needs the edges that
    `stage_edges` gives (`ConnectStages`). Of an encoder-decoder the loss is over the second half of each window.
    ``first_step``: number of the first iteration, which keys the data. An optimizer that clips needs a program that sums the
    norm of all ranks (`ClipGradients`). ``learning_rate``: by step; None: the optimizer's, always. ``groups``: which ranks
    share which sequences of a step, where its program is one of groups (`grouped_program`); None: all are as long.
    ``router``: losses of routers, beside that of tokens. ``correction_rate``: what a step adds to a router's correction or
    takes from it; its program has to count tokens (`CorrectRouters`). ``capacity``: of experts.
    """

    model: ModelSpec
    layers_per_stage: tuple[int, ...]
    sequence_length: int
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(clip_norm=None))
    source: Source = field(default_factory=Source)
    seed: int = 0
    dropout: float = 0.0
    first_step: int = 0
    data_axes: tuple[str, ...] = ("dp",)
    records_gradients: bool = False
    records_parameters: bool = True
    layer_edges: tuple[LayerEdge, ...] = ()
    layout: TensorLayout = field(default_factory=TensorLayout)
    learning_rate: LearningRate | None = None
    first_sample: int | None = None
    groups: GroupedBatch | None = None
    router: RouterLosses = field(default_factory=RouterLosses)
    correction_rate: float = 0.0
    capacity: ExpertCapacity = field(default_factory=ExpertCapacity)

    def __post_init__(self) -> None:
        if self.groups is not None:
            self._check_groups()
        if sum(self.layers_per_stage) != self.model.num_layers:
            raise ExecutionError(
                f"stages of {self.layers_per_stage} layers hold {sum(self.layers_per_stage)}",
                allowed=f"the model's {self.model.num_layers}",
            )
        if self.model.is_adapted:
            self._check_adapted()
        if self.model.hands_on_results and self.layer_edges:
            raise ExecutionError(
                "a ladder residual or parallel branches with long skips",
                allowed="a plain decoder, whose parts follow each other",
            )
        if self.router:
            self.router.check_model(self.model)
        if self.capacity:
            self.capacity.check_model(self.model)
        self._check_told()
        if self.source.modules:
            self._check_modules()
        if self.source.weights is not None and (self.model.num_encoder_layers or self.layer_edges):
            raise ExecutionError(
                f"{self.source.weights} gives first values to a model with long skips or an encoder",
                allowed="a plain decoder, which is what such folders hold",
            )
        if self.model.num_encoder_layers and (self.layer_edges or self.sequence_length % 2):
            raise ExecutionError(
                f"an encoder-decoder with {len(self.layer_edges)} long skips, windows of {self.sequence_length}",
                allowed="no long skips, and windows of an even number of tokens",
            )

    def _check_told(self) -> None:
        """What counts where tokens of whole sequences go has to be told by those that share them."""
        told, degrees = self.layout.shared_choices, self.layout.inner_degrees
        is_counted = self.capacity or self.router.balance > 0
        is_divided = degrees.cp > 1 or (degrees.sequence_parallel and degrees.divides_experts)
        wanted = "gates" if self.capacity and self.capacity.drop == PROBABILITY else "experts"
        if is_divided and is_counted and told not in (wanted, "gates"):
            raise ExecutionError(
                "a capacity of experts or a balance of routers with devices that share sequences, and tell each other "
                f"{'nothing' if told == 'none' else 'no gates'} of their tokens' experts",
                allowed=f"a program with the pass share_choices(gates={'true' if wanted == 'gates' else 'false'})",
                next="name it in the plan; `train --capacity-factor` and `--balance-loss` do so",
            )

    def _check_groups(self) -> None:
        """What a step in groups of ranks does not go with."""
        beside = {
            "dropout": self.dropout,
            f"modules of {self.source.modules}": self.source.modules,
            "long skips": self.layer_edges,
            "a held-out loss on the way": self.source.evaluate_every,
            "losses of routers": self.router,
            "corrections of routers": self.correction_rate,
            "a capacity of experts": self.capacity,
        }
        for name in (name for name, is_there in beside.items() if is_there):
            raise ExecutionError(
                f"sequences in groups of ranks with {name}", allowed="plain decoders without it"
            )

    def _check_modules(self) -> None:
        """A user's modules are only cut into stages, and copied."""
        held = {
            "first values from a folder": self.source.weights is not None,
            "dropout": self.dropout,
            "an encoder": self.model.num_encoder_layers,
            "long skips": self.layer_edges,
            "sequence parallelism": self.layout.sequence_parallel,
            "context parallelism": self.layout.cp > 1,
            "divided experts": self.layout.inner_degrees.divides_experts,
            "selective recompute": self.layout.recompute != "none",
            "token parts": len(self.layout.part_shares) > 1,
            "sharded states": self.layout.shard_axes,
            "frozen parameters": self.model.is_adapted,
            "tied tables": self.model.has_tied_embeddings,
            "a ladder residual": self.model.has_ladder_residual,
            "parallel branches": self.model.has_parallel_branches,
            "losses of routers": self.router,
            "corrections of routers": self.correction_rate,
            "a capacity of experts": self.capacity,
        }
        for name, is_there in held.items():
            if is_there:
                raise ExecutionError(
                    f"the modules of {self.source.modules} with {name}",
                    allowed="pipeline, data and tensor parallelism, sharding none",
                )
        if self.layout.tp > 1 and not self.source.tensor_rules:
            raise ExecutionError(
                f"the modules of {self.source.modules} with tensor parallelism, and no rules to cut them by",
                allowed="tensor rules, by name or of your own: --tensor-rules NAME, Source(tensor_rules=...)",
                next="`meshwright list tensor_rules` names them; or plan with tp=1",
            )
        if self.layout.tp > 1 and self.model.hidden_size % self.layout.tp:
            raise ExecutionError(
                f"a stream of width {self.model.hidden_size} on {self.layout.tp} devices",
                allowed="a tensor-parallel degree that divides it",
            )

    def _check_adapted(self) -> None:
        """What trains is known of plain decoders."""
        if self.layer_edges:
            raise ExecutionError(
                f"{self.model.name} has frozen parameters, and the job long skips",
                allowed="a plain decoder",
            )

    def stage_edges(self) -> tuple[StageEdge, ...]:
        """What its stages read of each other beside the path. Raises PlanError for an edge to no later layer."""
        return skip_edges(self.layer_edges, self.layers_per_stage)

    @property
    def num_program_stages(self) -> int:
        """Stages of its program: one for each segment, where a stage is a chain of them."""
        degrees, stages = self.inner_degrees, stage_layers(self.layers_per_stage)
        if not degrees.has_segments:
            return len(stages)
        return sum(len(decoder_chain(self.model, layers, degrees).segments) for layers in stages)

    @property
    def inner_degrees(self) -> InnerDegrees:
        """How many devices share a microbatch inside a stage, as rows of the program say it. A user's modules are no chains
        of segments: what is sent inside them is not in rows."""
        if self.groups is not None:
            return of_groups(self.layout.inner_degrees, self.groups.most_degree)
        return InnerDegrees() if self.source.modules else self.layout.inner_degrees

    @property
    def exchanges_inside(self) -> bool:
        """Do devices exchange within a user's modules?"""
        return bool(self.source.modules) and self.layout.tp > 1

    def is_evaluated(self, iteration: int, num_iterations: int) -> bool:
        """Is the held-out loss found after this iteration of a job?"""
        every = self.source.evaluate_every
        if not every:
            return False
        return (self.first_step + iteration + 1) % every == 0 or iteration + 1 == num_iterations

    @property
    def context_axes(self) -> tuple[str, ...]:
        """Axes along which ranks share samples."""
        return self.layout.inner_degrees.context_axes

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Axes along which ranks have other samples: along cp they share them, and have other tokens. Groups of
        ranks have none: every rank's microbatches are numbered for itself."""
        if self.groups is not None:
            return ()
        return tuple(axis for axis in self.data_axes if axis not in self.context_axes)

    @property
    def tokens_per_target(self) -> int:
        """Tokens of a window for each that the loss is over."""
        return self.model.num_halves

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**asdict(self), "model": self.model.to_dict()}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> TrainingConfig:
        """Read what `to_dict` wrote."""
        rest = {name: value for name, value in fields.items() if name != "model"}
        model = ModelSpec.from_dict(fields["model"])
        return record(TrainingConfig, rest, "training", ExecutionError, model=model)

    @property
    def is_random(self) -> bool:
        """Are its tokens drawn, and none read?"""
        return self.source.data == RANDOM.data

    @property
    def has_documents(self) -> bool:
        """Are documents masked? Known once it is `prepared`."""
        return has_documents(self.source)

    def prepared(
        self, shard_folder: str | Path | None = None, progress: Callable[[float], None] | None = None
    ) -> TrainingConfig:
        """The same with its data checked, and with token shards to open where text has to be tokenised: called before
        processes start, so that one makes them. Shards go to ``shard_folder``, else to the user's cache; ``progress`` is
        called with the share that is done.

        Raises:
            SpecError: no text, no tokenizer, or bad ones.
            ExecutionError: damaged shards, too little text, a model whose vocabulary is too small, or that has no documents;
                first values of another model.
        """
        if self.source.weights is not None:
            parameter_source(self.model, self.seed, self.source.weights)
        if self.is_random:
            return self
        source = prepared_source(self.source, shard_folder, progress)
        check_source(source, self.model.vocabulary_size, self.sequence_length)
        if has_documents(source) and self.model.num_encoder_layers:
            raise ExecutionError(
                "an encoder-decoder reads windows of text, and documents in them are masked",
                allowed="document_mask=False (on the command line --no-document-mask)",
            )
        return replace(self, source=source)

    def data_digest(self) -> str:
        """What tells its data from others, once it is `prepared`; "" for random tokens."""
        return "" if self.is_random else source_digest(self.source)

    def batches(self, samples_per_step: int) -> Batches:
        """The source of samples, of which all replicas together take ``samples_per_step`` in an iteration."""
        if self.is_random:
            return RandomTokens(self.model.vocabulary_size)
        return opened(self.source, self.sample_count(samples_per_step))

    def sequences(self, per_step: int) -> WholeSequences | None:
        """Where sequences of their own lengths come from, so many in a step; None: they are drawn."""
        return (
            None
            if self.is_random
            else whole_sequences(self.source, self.sample_count(per_step), self.sequence_length)
        )

    def sample_count(self, per_step: int) -> SampleCount:
        """Which samples a step has that takes ``per_step`` of them."""
        consumed = self.first_step * per_step if self.first_sample is None else self.first_sample
        return SampleCount(per_step, self.first_step, consumed)

    def sample_counts(self, program: Program) -> list[int]:
        """Samples of every microbatch of one replica.

        Raises:
            ExecutionError: the tokens of a microbatch are no whole number of sequences.
        """
        if self.groups is not None:
            return self._counts_of_groups(program, self.groups)
        counts = []
        for number, microbatch in enumerate(program.tables.microbatches):
            count, rest = divmod(microbatch.tokens, self.sequence_length)
            if rest or count < 1:
                raise ExecutionError(
                    f"microbatch {number} has {microbatch.tokens} tokens",
                    allowed=f"whole sequences of {self.sequence_length}",
                )
            if not self.layout.has_chunks and count % sum(self.layout.part_shares):
                raise ExecutionError(
                    f"microbatch {number} has {count} samples, and its parts the shares {self.layout.part_shares}",
                    allowed=f"a multiple of {sum(self.layout.part_shares)} samples",
                )
            counts.append(count)
        return counts

    def _counts_of_groups(self, program: Program, groups: GroupedBatch) -> list[int]:
        """One for each: its sequences are packed. Raises ExecutionError where the program is of other groups."""
        wanted = [each.part.num_tokens for each in groups.microbatches]
        found = [microbatch.tokens for microbatch in program.tables.microbatches]
        if found != wanted:
            raise ExecutionError(
                f"the program has {len(found)} microbatches of {found[:4]} ... tokens, the groups of the training "
                f"{len(wanted)} of {wanted[:4]} ...",
                next="build the program of these groups (grouped_program)",
            )
        return [1] * len(wanted)

    def shape_of(self, counts: Sequence[int], name: ValueName, dtype: torch.dtype) -> tuple[int, ...] | None:
        """Shape of what stages exchange: hidden states and their gradients, [B, S, E] (of a ladder residual or parallel
        branches [B, S, 2 E]), or a device's equal part of them."""
        if name.kind in RELAYED:
            num_samples, num_tokens = self._relayed(counts, name)
            return relayed_shape(
                self.model,
                name.kind,
                num_samples,
                num_tokens,
                self.layout.tp,
                wide_numbers(dtype),
                self.layout.context_parallel,
            )
        if name.kind not in ("activation", "gradient", SKIP.name, SKIP_GRADIENT.name):
            return None
        # a decoder's stages send twice as much as its encoder's: shapes are told ahead
        if self.model.num_encoder_layers:
            return None
        length = self.sequence_length // self.tokens_per_target // self.layout.cp
        width = self.model.hidden_size * (2 if self.model.hands_on_results else 1)
        num_samples = counts[name.microbatch]
        if name.kind in ("activation", "gradient"):
            num_samples = len(self.layout.part_samples(num_samples, name.part))
            chunk = self.layout.chunk(length, name.part)
            length = length if chunk is None else chunk.num_tokens
        if self.layout.sequence_parallel:
            return (num_samples, length // self.layout.tp, width)
        return (num_samples, length, width // self.layout.tp)

    def _relayed(self, counts: Sequence[int], name: ValueName) -> tuple[int, int]:
        """Samples, and tokens that a device attends with, of what relays send: of a microbatch's part, or of one of a
        group's."""
        if self.groups is not None:  # which are not cut into parts
            return counts[name.microbatch], self.groups.microbatches[name.microbatch].part.num_tokens
        ring = self.layout.context_parallel.ring_degree
        part = token_part(name.kind, name.part, ring)
        return len(self.layout.part_samples(counts[name.microbatch], part)), self.sequence_length // ring
