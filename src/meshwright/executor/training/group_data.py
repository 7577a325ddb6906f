"""The data of one rank where a step's sequences are in groups of ranks: the tokens of each, packed, and what a loss weighs.

Microbatch n of the program is ``groups.microbatches[n]``: the rank asks its source for every one of its sequences by its
number in the step, puts padding behind each, and takes the places of `part`.

Shapes: L tokens of a sequence, S places of all that a group packs, s of them on this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from meshwright.executor.data.packing import documents_of, loss_targets
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.executor.ops.token_places import own_tokens
from meshwright.executor.training.training_job import RandomTokens, TrainingConfig
from meshwright.ir.program import Program
from meshwright.specs.error import ExecutionError
from meshwright.specs.sequence.packed_part import PackedPart
from meshwright.specs.sequence.sequence_group import GroupedBatch

PADDING = 0  # token of places without one: nothing sees them, and they have no target


class StepSequences(Protocol):
    """Where the sequences of a step come from: a function of (seed, step, number) and of nothing else."""

    def sequence(self, seed: int, step: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        """tokens_L and targets_L of sequence `number` of a step; a target that is left out is IGNORED_TARGET."""

    def num_targets(self, seed: int, step: int, lengths: Sequence[int]) -> int:
        """Targets of all sequences of a step that are not left out: what its mean loss is over."""


@dataclass(frozen=True)
class RandomSequences:
    """Tokens drawn by (seed, step, number), every one with a target: for tests and benchmarks."""

    drawn: RandomTokens

    def sequence(self, seed: int, step: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        """tokens_L and targets_L, uniform."""
        tokens_BL, targets_BL = self.drawn.batch(seed, step, (number,), length)
        return tokens_BL[0], targets_BL[0]

    def num_targets(self, seed: int, step: int, lengths: Sequence[int]) -> int:
        """Of all tokens."""
        return sum(lengths)


class GroupData:
    """As `RankData`: what microbatches have, by their number. ``groups``: of the step. ``evaluated`` is None always: held-out
    text is not in groups."""

    replica = 0
    evaluated: int | None = None

    def __init__(
        self, training: TrainingConfig, program: Program, groups: GroupedBatch, source: StepSequences | None = None
    ) -> None:  # fmt: skip
        self.training, self.groups = training, groups
        self.counts = training.sample_counts(program)
        self.num_samples = len(groups.lengths)
        if source is None:
            source = RandomSequences(RandomTokens(training.model.vocabulary_size))
        self.source: StepSequences = source
        self.batches = source  # by which a checkpoint knows the data
        self.begin(training.first_step)

    def begin(self, step: int) -> None:
        """Forget the data of the step before."""
        self.step = step
        self._taken: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._num_targets: int | None = None
        self._within: set[int] = set()  # microbatches with sequences of several documents

    @property
    def num_step_tokens(self) -> int:
        """Tokens of a step, padding left out."""
        return self.groups.num_tokens

    def part_of(self, microbatch: int) -> PackedPart:
        """Which tokens of its group's sequences a microbatch is."""
        return self.groups.microbatches[microbatch].part

    def tokens(self, microbatch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """tokens_1s and targets_1s of a microbatch in this step."""
        tokens_1S, targets_1S, _ = self._packed(microbatch, device)
        part = self.part_of(microbatch)
        return own_tokens(tokens_1S, part), own_tokens(loss_targets(targets_1S), part)

    def documents(self, microbatch: int, device: torch.device) -> Tensor:
        """Where every token's document begins among the packed ones, [1, S]: sequences never see each other, and every token
        of padding is one of its own."""
        return self._packed(microbatch, device)[2]

    def is_packed(self, microbatch: int) -> bool:
        """Are its documents the sequences that its part packs, and no more?"""
        return microbatch not in self._within

    def keys(self, microbatch: int, *_: object) -> None:
        """No draws: `TrainingConfig` refuses dropout with groups."""
        return

    def token_weight(self, microbatch: int) -> float:
        """Weight of one token's loss: those of all tokens of the step that have a target sum to one."""
        if self._num_targets is None:
            own = self.training.seed, self.step, self.groups.lengths
            self._num_targets = self.source.num_targets(*own)
        return 1.0 / max(1, self._num_targets)

    def _packed(self, microbatch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """tokens_1S, targets_1S and starts_1S of all that its group packs."""
        if microbatch not in self._taken:
            own = self.groups.microbatches[microbatch]
            firsts, length = own.part.firsts, own.part.sequence_length
            tokens_S = torch.full((length,), PADDING, dtype=torch.int64)
            targets_S, starts_S = torch.full_like(tokens_S, IGNORED_TARGET), torch.arange(length)
            for number, first in zip(own.sequences, firsts, strict=False):
                own_L = slice(first, first + self.groups.lengths[number])
                found = self._sequence(number)
                tokens_S[own_L], targets_S[own_L], starts_S[own_L] = (*found[:2], found[2] + first)
                if bool(found[2].any()):
                    self._within.add(microbatch)
            packed = (tokens_S[None].to(device), targets_S[None].to(device), starts_S[None].to(device))
            self._taken = {microbatch: packed}  # segments of one follow each other
        return self._taken[microbatch]

    def _sequence(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """tokens_L, targets_L and starts_L of a sequence, which may itself be of several documents."""
        length = self.groups.lengths[number]
        tokens_L, targets_L = self.source.sequence(self.training.seed, self.step, number, length)
        if tokens_L.shape != (length,) or targets_L.shape != (length,):
            raise ExecutionError(
                f"sequence {number} of step {self.step} has {tuple(tokens_L.shape)} tokens and "
                f"{tuple(targets_L.shape)} targets",
                allowed=f"{length} of each, the length that its groups were made for",
            )
        starts_BL = documents_of(targets_L[None]) if self.training.has_documents else None
        return tokens_L, targets_L, torch.zeros_like(tokens_L) if starts_BL is None else starts_BL[0]
