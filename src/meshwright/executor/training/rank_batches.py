"""The data of one rank: which samples of the global batch its microbatches are, their tokens, what a token's loss weighs.

Shapes: B samples of a microbatch, S tokens of a sequence, s of them on this rank (all, without context parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from meshwright.executor.data.packing import PackedSequences, documents_of, loss_targets
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.executor.ops.token_places import own_tokens
from meshwright.executor.training.training_job import Batches, TrainingConfig
from meshwright.ir.program import Program
from meshwright.specs.sequence.sequence_part import SequencePart, SequenceRun


class RankData:
    """``replica``: which part of the data; ``part``: which tokens of its sequences, None: all of them; ``counts``: samples of
    every microbatch; ``num_samples``: of all replicas in an iteration. ``batches``: where tokens come from, opened when the
    first are asked for. ``evaluated``: which global batch of the held-out part is being evaluated; None: it is trained.
    ``step``: of the training, from its first start."""

    def __init__(self, training: TrainingConfig, program: Program, coordinates: Mapping[str, int]) -> None:
        self.training, self._microbatches = training, program.tables.microbatches
        self.replica, self.num_replicas = 0, 1
        for axis in program.axes:
            if axis.name in training.replica_axes:
                self.replica = self.replica * axis.size + coordinates[axis.name]
                self.num_replicas *= axis.size
        self.counts = training.sample_counts(program)
        rank = 0
        for axis in program.axes:
            if axis.name in training.context_axes:
                rank = rank * axis.size + coordinates[axis.name]
        self.part = training.layout.part(training.sequence_length, rank)
        self.num_samples = sum(self.counts) * self.num_replicas
        self.batches: Batches | None = None
        self.evaluated: int | None = None
        self.begin(training.first_step)

    def begin(self, step: int) -> None:
        """Forget the data of the step before."""
        self.step = step
        self._taken: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._token_ratio: float | None = None

    @property
    def num_step_tokens(self) -> int:
        """Tokens of all replicas in an iteration."""
        return sum(row.tokens for row in self._microbatches) * self.num_replicas

    def part_of(self, microbatch: int) -> SequencePart | None:
        """Which tokens of its sequences a microbatch is: the same of all; None: all of them."""
        return self.part

    def is_packed(self, microbatch: int) -> bool:
        """Are its documents sequences that its part packs?"""
        return False

    def samples(self, microbatch: int) -> tuple[int, ...]:
        """Numbers of a microbatch's samples in the global batch."""
        first = self.replica * sum(self.counts) + sum(self.counts[:microbatch])
        return tuple(range(first, first + self.counts[microbatch]))

    def tokens(self, microbatch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """tokens_Bs and targets_Bs of a microbatch in this iteration, those of this rank."""
        if microbatch not in self._own:
            tokens_BS, targets_BS = self._sequences(microbatch, device)
            targets_BS = loss_targets(targets_BS)
            if self.part is not None:
                tokens_BS, targets_BS = own_tokens(tokens_BS, self.part), own_tokens(targets_BS, self.part)
            self._own[microbatch] = tokens_BS, targets_BS
        return self._own[microbatch]

    def _sequences(self, microbatch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS of whole sequences, as `Batches` gives them."""
        if microbatch not in self._taken:
            if self.batches is None:
                self.batches = self.training.batches(self.num_samples)
            samples, length = self.samples(microbatch), self.training.sequence_length
            if self.evaluated is None:
                tokens_BS, targets_BS = self.batches.batch(self.training.seed, self.step, samples, length)
            else:
                held_out = self._held_out_samples(samples)
                tokens_BS, targets_BS = self.batches.held_out_windows(*held_out, length)
            self._taken[microbatch] = (tokens_BS.to(device), targets_BS.to(device))
        return self._taken[microbatch]

    def documents(self, microbatch: int, device: torch.device) -> Tensor | None:
        """Where every token's document begins in its sequence, [B, S] of whole sequences: keys of other ranks are masked by
        it, too. None where documents are not masked."""
        return documents_of(self._sequences(microbatch, device)[1]) if self.training.has_documents else None

    def token_weight(self, microbatch: int) -> float:
        """Weight of one token's loss: those of all tokens of all replicas that have a target sum to one, over the ranks that
        share sequences, too."""
        row = self._microbatches[microbatch]
        weight = row.weight / row.tokens / self.num_replicas * self.training.tokens_per_target
        return weight * self._tokens_per_counted()

    def keys(
        self, microbatch: int, own: slice = slice(None), chunk: SequenceRun | None = None
    ) -> SampleKeys | None:
        """Names of the draws of a microbatch, or of some of its samples or a chunk of each; None without dropout."""
        if not self.training.dropout or self.evaluated is not None:
            return None
        return SampleKeys(self.training.seed, self.step, self.samples(microbatch)[own], chunk or self.part)

    def _tokens_per_counted(self) -> float:
        """Tokens of the global batch for each whose target is not left out."""
        if self._token_ratio is None:
            self._token_ratio, length = 1.0, self.training.sequence_length
            if isinstance(self.batches, PackedSequences):
                if self.evaluated is None:
                    num_targets = self.batches.num_targets(self.training.seed, self.step, length)
                else:
                    held_out = self._held_out_samples(range(self.num_samples))
                    num_targets = self.batches.num_held_out_targets(*held_out, length)
                self._token_ratio = self.num_samples * length / num_targets
        return self._token_ratio

    def _held_out_samples(self, samples: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Numbers of samples of the global batch that is evaluated among all that an evaluation takes; how many these are."""
        first = (self.evaluated or 0) * self.num_samples
        return tuple(
            first + sample for sample in samples
        ), self.num_samples * self.training.source.num_evaluated
