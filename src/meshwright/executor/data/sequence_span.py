"""Which run of a split's tokens a training sequence is: text is cut every S tokens, conversations are packed whole.

Conversations follow each other in a sequence as long as the next one fits; one that is longer than a sequence is alone in it
and loses its end. So no answer is ever learned without the question before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshwright.executor.data.token_shard import TokenSplit
from meshwright.specs.error import ExecutionError

Integers = npt.NDArray[np.int64]


class Spans(Protocol):
    """The sequences of a split."""

    @property
    def count(self) -> int:
        """How many there are."""

    def of(self, sequences: Integers) -> tuple[Integers, Integers]:
        """Where each begins in the row of tokens, and how many tokens it has, the last target among them: up to S + 1."""


@dataclass(frozen=True)
class CutRow:
    """The row of tokens cut every S of them."""

    count: int
    sequence_length: int

    def of(self, sequences: Integers) -> tuple[Integers, Integers]:
        """As `Spans`."""
        return sequences * self.sequence_length, np.full_like(sequences, self.sequence_length + 1)


@dataclass(frozen=True, eq=False)
class WholeDocuments:
    """Runs of whole documents, in their order. ``num_cut``: documents that lost tokens, ``num_lost`` of them in all;
    ``num_silenced``: documents among these that lost all of their answers, and are in no sequence."""

    firsts: Integers
    lengths: Integers
    num_cut: int
    num_lost: int
    num_silenced: int

    @property
    def count(self) -> int:
        """Of sequences."""
        return len(self.firsts)

    def of(self, sequences: Integers) -> tuple[Integers, Integers]:
        """As `Spans`."""
        return self.firsts[sequences], self.lengths[sequences]


def spans_of(split: TokenSplit, sequence_length: int) -> Spans:
    """The sequences of S tokens of a split. Raises ExecutionError where there is none."""
    if split.has_answers:
        return whole_documents(split, sequence_length)
    count = (split.num_tokens - 1) // sequence_length
    if count < 1:
        raise ExecutionError(
            f"a sequence of {sequence_length} tokens and its target do not fit into the {split.num_tokens} tokens of "
            f"{split.num_documents} documents",
            allowed=f"sequences up to {max(split.num_tokens - 1, 0)}",
            next="shorten the sequences or give more text",
        )
    return CutRow(count, sequence_length)


@lru_cache(maxsize=4)  # of both splits, and of another length
def whole_documents(split: TokenSplit, sequence_length: int) -> WholeDocuments:
    """Documents packed whole into sequences of S tokens and a target. Raises ExecutionError where no answer fits."""
    begins = split.starts(0, split.num_tokens)
    ends = np.append(begins[1:], split.num_tokens)
    most = sequence_length + 1
    is_long = ends - begins > most
    silenced = {int(n) for n in np.flatnonzero(is_long) if not split.answers(int(begins[n]), most).any()}
    firsts, lengths, document = [], [], 0
    while document < len(begins):
        first = int(begins[document])
        behind = max(document + 1, int(np.searchsorted(ends, first + most, side="right")))
        if document not in silenced:  # it is too long, so nothing stands beside it
            firsts.append(first)
            lengths.append(min(most, int(ends[behind - 1]) - first))
        document = behind
    if not firsts:
        raise ExecutionError(
            f"none of {len(begins)} conversations has an answer within its first {sequence_length} tokens",
            allowed="sequences in which a question and the beginning of its answer fit",
            next="lengthen the sequences (--seq of `plan`)",
        )
    return WholeDocuments(
        np.array(firsts, np.int64), np.array(lengths, np.int64), int(is_long.sum()),
        int((ends - begins - most)[is_long].sum()), len(silenced),
    )  # fmt: skip
