"""Whole sequences: samples of their own lengths, one document each, cut every context length; none is packed with another.

Which sequences a step has, and how long they are, follows from numbers alone: documents say where they begin, and the order
of samples is computed (`SampleOrder`). So the groups of a step can be decided before any of its tokens is read.

Shapes: L tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from meshwright.executor.data.packing import UNLEARNED, SampleCount
from meshwright.executor.data.sample_order import SampleOrder
from meshwright.executor.data.token_shard import TokenShards, TokenSplit
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.specs.error import ExecutionError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WholeSpans:
    """Where every sequence begins in its split's row of tokens, how long it is, and whether its document ends with it."""

    firsts: Integers
    lengths: Integers
    ends: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, split: TokenSplit, context_length: int) -> WholeSpans:
        """A document is cut every `context_length` tokens, and what is left of it is a sequence of its own: no token is lost.
        Of conversations only their beginnings are, as far as these have an answer: what follows would be answers
        without a question. Raises ExecutionError where there is no sequence with a target.
        """
        begins, whole = split.starts(0, split.num_tokens), split.document_lengths
        pieces = np.ones(len(whole), np.int64) if split.has_answers else -(-whole // context_length)
        document = np.repeat(np.arange(len(whole)), pieces)
        place = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        lengths = np.minimum(context_length, whole[document] - place * context_length)
        firsts, ends = begins[document] + place * context_length, place == pieces[document] - 1
        if split.has_answers:
            ends = whole <= context_length
        # what is learned is the next token of the same document
        learns = lengths - ends > 0
        if split.has_answers:
            spans = zip(firsts.tolist(), (lengths + ~ends).tolist(), strict=True)
            learns = np.array([bool(split.answers(first + 1, length - 1).any()) for first, length in spans])
        if not learns.any():
            raise ExecutionError(
                f"none of {split.num_documents} documents has a token to learn within {context_length} tokens",
                allowed="documents of two tokens and more, conversations with an answer",
                next="give more text, or lengthen the sequences (--seq of `plan`)",
            )
        return cls(firsts[learns], lengths[learns], ends[learns])


@dataclass(frozen=True, eq=False)
class WholeSequences:
    """The sequences of a training's steps from a folder of token shards, each up to `context_length` tokens long."""

    shards: TokenShards
    count: SampleCount
    context_length: int

    @property
    def digest(self) -> str:
        """What tells these tokens from others."""
        return self.shards.digest

    @cached_property
    def spans(self) -> WholeSpans:
        """Of the split that is trained on. Raises ExecutionError as `WholeSpans.of`."""
        return WholeSpans.of(self.shards.train, self.context_length)

    def lengths(self, seed: int, step: int) -> tuple[int, ...]:
        """Tokens of every sequence of a step, in their order. Reads no token."""
        return tuple(self.spans.lengths[self._chosen(seed, step, range(self.count.per_step))].tolist())

    def sequence(self, seed: int, step: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        """tokens_L and targets_L of sequence `number` of a step, which has `length` tokens; the target of a document's end is
        IGNORED_TARGET, of conversations those that are not learned are UNLEARNED."""
        place = int(self._chosen(seed, step, [number])[0])
        first, own = int(self.spans.firsts[place]), int(self.spans.lengths[place])
        if own != length:
            raise ExecutionError(
                f"sequence {number} of step {step} has {own} tokens, its groups were made for {length}",
                next="make the groups from the lengths of this step",
            )
        ends, split = bool(self.spans.ends[place]), self.shards.train
        tokens = split.read(first, own + (not ends))
        targets = np.full(own, IGNORED_TARGET, np.int64)
        learned = len(tokens) - 1
        targets[:learned] = tokens[1:]
        if split.has_answers and learned:
            targets[:learned][~split.answers(first + 1, learned)] = UNLEARNED
        return torch.from_numpy(tokens[:own].copy()), torch.from_numpy(targets)

    def num_targets(self, seed: int, step: int, lengths: Sequence[int]) -> int:
        """Targets of all sequences of a step that are not left out: what its mean loss is over. Reads no token, and of
        conversations what is learned."""
        chosen = self._chosen(seed, step, range(len(lengths)))
        firsts, own, ends = self.spans.firsts[chosen], self.spans.lengths[chosen], self.spans.ends[chosen]
        if not self.shards.train.has_answers:
            return max(1, int((own - ends).sum()))
        spans = zip((firsts + 1).tolist(), (own - ends).tolist(), strict=True)
        return max(1, sum(int(self.shards.train.answers(first, length).sum()) for first, length in spans))

    def _chosen(self, seed: int, step: int, numbers: Sequence[int]) -> Integers:
        """Places among the spans of sequences of a step."""
        order = SampleOrder(len(self.spans.lengths), seed)
        return order.sequences(self.count.first_of(step) + np.asarray(numbers, np.int64))
