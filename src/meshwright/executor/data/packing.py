"""Documents packed into sequences, with the documents marked: text cut every S tokens, or conversations kept whole.

Shapes: B samples, S tokens.

Text: a document may begin anywhere in a sequence and go on in the next one, which then sees its rest as a document of its
own. With document masks attention stays within a document, positions restart with it, and the loss leaves out the target of
a document's end token, which would be the first token of another document. Without them a sequence is one text, and every
token has a target. The tokens behind the last whole sequence are not used.

Conversations (`sequence_span`): what a sequence has no conversation for is filled with ends of documents, each of them a
document without a target; targets that are not the assistant's words are UNLEARNED.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meshwright.executor.data.sample_order import SampleOrder
from meshwright.executor.data.sequence_span import spans_of
from meshwright.executor.data.token_shard import TokenShards, TokenSplit
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET

Integers = npt.NDArray[np.int64]
# Of a target that is there and not to be learned. No loss has seen it: `loss_targets` comes before.
UNLEARNED = -101


@dataclass(frozen=True)
class SampleCount:
    """Which samples a step has: those from `first_sample` + (step - `first_step`) x `per_step` on, `per_step` of them (the
    global batch). A job that resumes says how many samples were consumed, and its own global batch.
    """

    per_step: int
    first_step: int = 0
    first_sample: int = 0

    def first_of(self, step: int) -> int:
        """The number of the step's first sample."""
        return self.first_sample + (step - self.first_step) * self.per_step


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Batches of a folder of token shards, in the order of `SampleOrder`."""

    shards: TokenShards
    count: SampleCount
    document_mask: bool = True

    @property
    def digest(self) -> str:
        """What tells these tokens and their order from others."""
        return self.shards.digest

    def batch(
        self, seed: int, step: int, samples: Sequence[int], sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """tokens_BS and targets_BS of these samples of step `step`, int64; with document masks the targets of documents'
        ends are IGNORED_TARGET, of conversations those that are not learned UNLEARNED. Raises ExecutionError where the
        text is shorter than one sequence.
        """
        sequences = self._sequences(seed, step, samples, sequence_length)
        return self._packed(self.shards.train, sequences, sequence_length)

    def held_out_windows(
        self, samples: Sequence[int], num_samples: int, sequence_length: int
    ) -> tuple[Tensor, Tensor]:
        """The same of some of `num_samples` sequences spread evenly over the held-out documents, always the same ones."""
        sequences = self._held_out_sequences(samples, num_samples, sequence_length)
        return self._packed(self.shards.held_out, sequences, sequence_length)

    def held_out_batches(
        self, num_sequences: int, sequence_length: int, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All of `num_sequences` held-out sequences, `batch_size` at a time."""
        for first in range(0, num_sequences, batch_size):
            samples = range(first, min(first + batch_size, num_sequences))
            yield self.held_out_windows(samples, num_sequences, sequence_length)

    def num_targets(self, seed: int, step: int, sequence_length: int) -> int:
        """Targets of a step's whole global batch that are not left out: what its mean loss is over. Reads no token, and of
        conversations what is learned."""
        samples = range(self.count.per_step)
        sequences = self._sequences(seed, step, samples, sequence_length)
        return self._count(self.shards.train, sequences, sequence_length)

    def num_held_out_targets(self, samples: Sequence[int], num_samples: int, sequence_length: int) -> int:
        """The same of held-out sequences."""
        sequences = self._held_out_sequences(samples, num_samples, sequence_length)
        return self._count(self.shards.held_out, sequences, sequence_length)

    def _packed(self, split: TokenSplit, sequences: Integers, sequence_length: int) -> tuple[Tensor, Tensor]:
        """The sequences of a split by number."""
        firsts, lengths = spans_of(split, sequence_length).of(sequences)
        rows = np.full((len(sequences), sequence_length + 1), self.shards.end_id, np.int64)
        targets = np.full((len(sequences), sequence_length), IGNORED_TARGET, np.int64)
        for number, (first, length) in enumerate(zip(firsts.tolist(), lengths.tolist())):
            rows[number, :length] = split.read(first, length)
            own = targets[number, : length - 1]
            own[:] = rows[number, 1:length]
            if split.has_answers:
                own[~split.answers(first + 1, length - 1)] = UNLEARNED
            if self.document_mask:
                own[split.starts(first + 1, length - 1) - first - 1] = IGNORED_TARGET
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(targets)

    def _count(self, split: TokenSplit, sequences: Integers, sequence_length: int) -> int:
        if split.has_answers:  # the first token of a document is none
            spans = zip(*spans_of(split, sequence_length).of(sequences))
            return max(1, sum(int(split.answers(int(n), int(length)).sum()) for n, length in spans))
        num_tokens = len(sequences) * sequence_length
        if not self.document_mask:
            return num_tokens
        # the target of token i is token i + 1, left out where a document begins with it
        first = sequences * sequence_length + 1
        left_out = split.num_begun(first + sequence_length) - split.num_begun(first)
        return max(1, num_tokens - int(left_out.sum()))

    def _sequences(self, seed: int, step: int, samples: Sequence[int], sequence_length: int) -> Integers:
        order = SampleOrder(spans_of(self.shards.train, sequence_length).count, seed)
        return order.sequences(self.count.first_of(step) + np.asarray(samples, np.int64))

    def _held_out_sequences(self, samples: Sequence[int], num_samples: int, sequence_length: int) -> Integers:
        last = spans_of(self.shards.held_out, sequence_length).count - 1
        return np.asarray(samples, np.int64) * last // max(1, num_samples - 1)


def loss_targets(targets_BS: Tensor) -> Tensor:
    """Targets as losses read them: what is not learned is left out like what has no target."""
    return targets_BS.masked_fill(targets_BS == UNLEARNED, IGNORED_TARGET)


def documents_of(targets_BS: Tensor) -> Tensor | None:
    """For every token the place in its sequence where its document begins, int64; None where no document ends in any
    sequence, so that there is nothing to mask. A document ends with the token whose target is left out.
    """
    is_end_BS = targets_BS == IGNORED_TARGET
    if not bool(is_end_BS[:, :-1].any()):
        return None
    places_S = torch.arange(targets_BS.shape[1], device=targets_BS.device)
    begins_BS = torch.zeros_like(targets_BS)
    begins_BS[:, 1:] = torch.where(is_end_BS[:, :-1], places_S[1:], 0)
    return torch.cummax(begins_BS, 1).values
