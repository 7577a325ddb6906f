"""Rows of the sequences that an engine runs: their tokens, their blocks, how far they are computed.

Shapes: S sequences of a step, T new tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.policy.batch import Batch
from meshwright.serving.policy.sequence import Sequence

FIRST_ROWS = 16
FIRST_BLOCKS = 8
Ints = NDArray[np.int64]


class LateTokens(NamedTuple):
    """Tokens of a step that the step before it is still to draw: where they stand in this one, and among those drawn."""

    places: Ints | slice
    sources: Ints | slice

    @classmethod
    def at(cls, places: Ints, sources: Ints) -> LateTokens:
        """Slices where they do: behind a step code is cold, and these are written then."""
        return cls(_as_slice(places), _as_slice(sources))


@dataclass(eq=False, slots=True)
class StepWork:
    """A batch as rows, taken when it was submitted: what changes later does not change it.

    Args:
        batch: of which it is.
        sequences: ``[S]``: of its chunks, then of its decodes.
        rows, starts, counts: ``[S]``: where their tokens stand, the first that is computed, and how many.
        block_ids, block_starts: as `StepInputs` has them.
        draws: ``[S]``: does a token come out behind it?
        now_s: when it was submitted.
        proposed: of every decode the tokens that are proposed behind its last; (): to nobody.
    """

    batch: Batch
    sequences: list[Sequence]
    rows: Ints
    starts: Ints
    counts: Ints
    block_ids: NDArray[np.int32]
    block_starts: NDArray[np.int32]
    draws: NDArray[np.bool_]
    now_s: float
    proposed: Items[Items[int]] = ()

    @property
    def num_wanted(self) -> Ints:
        """Rows whose logits are wanted, of each sequence that draws: one, and one behind each proposed token."""
        found = np.ones(int(self.draws.sum()), np.int64)
        if self.proposed:
            found[len(found) - len(self.proposed) :] += [len(each) for each in self.proposed]
        return found


class RunningRows:
    """A row is numbered by whoever draws tokens for it; rows are reused."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._tokens: list[NDArray[np.int32]] = []  # prompt and output, room for all
        self.num_tokens = np.zeros(0, np.int64)  # known
        self._last = np.zeros(0, np.int64)  # the last of them
        self._room = np.zeros(0, np.int64)  # tokens that it may have
        # Tokens whose keys and values are in blocks once the steps given out have run.
        self._given = np.zeros(0, np.int64)
        self._drawn_at = np.zeros(
            0, np.int64
        )  # its place among those that draw, in the last step that was given out
        self._tables = np.zeros((0, FIRST_BLOCKS), np.int32)
        self._num_blocks = np.zeros(0, np.int64)

    def begin(self, row: int, prompt: NDArray[np.int32], max_output_tokens: int) -> None:
        """A sequence takes a row."""
        while row >= len(self._tokens):
            self._grow()
        tokens = np.empty(len(prompt) + max_output_tokens, np.int32)
        tokens[: len(prompt)] = prompt
        self._tokens[row] = tokens
        self.num_tokens[row], self._last[row] = len(prompt), prompt[-1]
        self._room[row] = len(tokens)
        self._num_blocks[row] = self._given[row] = 0

    def tokens(self, row: int) -> NDArray[np.int32]:
        """Prompt and output, as far as they are known."""
        return self._tokens[row][: self.num_tokens[row]]

    def append(self, rows: Ints, token_ids: Ints) -> None:
        """Tokens came out, of rows that have room for them."""
        num = self.num_tokens[rows]
        for row, place, token_id in zip(rows.tolist(), num.tolist(), token_ids.tolist(), strict=True):
            self._tokens[row][place] = token_id
        self.num_tokens[rows] = num + 1
        self._last[rows] = token_ids

    def are_full(self, rows: Ints) -> NDArray[np.bool_]:
        """Have they all the tokens that they may have?"""
        full: NDArray[np.bool_] = self.num_tokens[rows] == self._room[rows]
        return full

    def left(self, row: int) -> None:
        """Its blocks are another's now."""
        self._num_blocks[row] = 0

    def room(self, row: int) -> int:
        """Tokens that it may still get."""
        return int(self._room[row] - self.num_tokens[row])

    def settle(self, rows: Ints, num_kept: Ints) -> None:
        """Of what a step computed, so many tokens of each sequence are its own; blocks behind them are another's now."""
        self._given[rows] = num_kept
        self._num_blocks[rows] = np.minimum(self._num_blocks[rows], -(-num_kept // self._block_tokens))

    def work(
        self, batch: Batch, rows_of: dict[Sequence, int], now_s: float, proposed: Items[Items[int]] = ()
    ) -> StepWork:
        """A batch as rows, with what is proposed to its decodes; counts it as computed."""
        chunks = batch.chunks
        sequences = [*(chunk.sequence for chunk in chunks), *batch.decodes]
        rows = np.fromiter((rows_of[each] for each in sequences), np.int64, len(sequences))
        self._take_blocks(sequences, rows.tolist())
        starts, counts = self._given[rows], np.ones(len(sequences), np.int64)
        draws = np.ones(len(sequences), np.bool_)
        for place, chunk in enumerate(chunks):
            starts[place], counts[place], draws[place] = chunk.start, chunk.num_tokens, chunk.is_last
        if proposed:
            counts[len(chunks) :] += [len(each) for each in proposed]
        self._given[rows] = starts + counts
        needed = -(-(starts + counts) // self._block_tokens)
        held = self._tables[rows, : needed.max()]
        block_ids = held[np.arange(held.shape[1]) < needed[:, None]]
        return StepWork(
            batch, sequences, rows, starts, counts, block_ids, _starts(needed), draws, now_s, proposed
        )

    def late(self, work: StepWork) -> LateTokens | None:
        """What it computes that is not known yet: of a sequence the last token; the step before draws it."""
        ends = work.starts + work.counts
        unknown = self.num_tokens[work.rows] < ends
        if not unknown.any():
            return None
        assert (self.num_tokens[work.rows] >= ends - 1).all(), "two tokens of a sequence are not known"
        places = (np.cumsum(work.counts) - 1)[unknown]
        return LateTokens.at(places, self._drawn_at[work.rows[unknown]])

    def given_out(self, rows: Ints) -> None:
        """A step draws a token of each of these rows, in this order."""
        self._drawn_at[rows] = np.arange(len(rows))

    def inputs(self, work: StepWork, adapters: tuple[int, ...] = ()) -> StepInputs:
        """What a runner takes, in arrays of its own; tokens as they are known now, anything where they are `late`."""
        num_chunks = len(work.batch.chunks)
        query_starts = _starts(work.counts)
        decoded = self._last[work.rows[num_chunks:]]
        if work.proposed:
            pairs = zip(decoded.tolist(), work.proposed, strict=True)
            decoded = np.array([token for last, more in pairs for token in (last, *more)], np.int64)
        spans = [
            self._tokens[row][start : start + count]
            for row, start, count in zip(
                work.rows[:num_chunks].tolist(), work.starts.tolist(), work.counts.tolist(), strict=False
            )
        ]
        token_ids = np.concatenate([*spans, decoded]).astype(np.int64, copy=False) if spans else decoded
        positions = np.arange(len(token_ids)) - np.repeat(query_starts[:-1] - work.starts, work.counts)
        return StepInputs(
            token_ids, positions, query_starts, work.starts.astype(np.int32), work.block_ids, work.block_starts,
            int((work.starts + work.counts).max()), _wanted_rows(work, query_starts), adapters,
        )  # fmt: skip

    def _take_blocks(self, sequences: list[Sequence], rows: list[int]) -> None:
        """Blocks that sequences got since their last step, at the ends of their tables."""
        for sequence, row, had in zip(sequences, rows, self._num_blocks[rows].tolist(), strict=True):
            num = len(sequence.blocks)
            if num == had:
                continue
            while num > self._tables.shape[1]:
                self._tables = np.concatenate([self._tables, np.zeros_like(self._tables)], axis=1)
            self._tables[row, had:num] = sequence.blocks[had:]
            self._num_blocks[row] = num

    def _grow(self) -> None:
        """Twice as many rows."""
        more = max(FIRST_ROWS, len(self._tokens))
        self._tokens += [np.zeros(0, np.int32)] * more
        for name in ("num_tokens", "_last", "_room", "_given", "_drawn_at", "_num_blocks", "_tables"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)]))


def _starts(counts: Ints) -> NDArray[np.int32]:
    """0 and the running sums."""
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def _as_slice(indices: Ints) -> Ints | slice:
    """The same indices."""
    first = int(indices[0])
    return slice(first, first + len(indices)) if (np.diff(indices) == 1).all() else indices


def _wanted_rows(work: StepWork, query_starts: NDArray[np.int32]) -> Ints:
    """The last token of everyone who draws, and before it those behind which something is proposed."""
    last = (query_starts[1:] - 1)[work.draws].astype(np.int64)
    if not work.proposed:
        return last
    nums = work.num_wanted
    places = np.arange(nums.sum()) - np.repeat(np.cumsum(nums) - nums, nums)  # 0, 1, .. of each
    found: Ints = np.repeat(last - nums + 1, nums) + places
    return found
