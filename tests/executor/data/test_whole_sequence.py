"""Whole sequences: no token lost, each target once, lengths known without tokens, the same steps after any stop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.token_data import shards_of

from meshwright.executor.data.packing import SampleCount
from meshwright.executor.data.token_shard import TokenShards, TokenSplit
from meshwright.executor.data.whole_sequence import WholeSequences, WholeSpans
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.specs.error import ExecutionError

DOCUMENTS = [[1 + (n * 7 + place) % 97 for place in range(n * n % 31)] for n in range(90)]
CONTEXT = 8


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return shards_of(tmp_path_factory.mktemp("whole"), DOCUMENTS)


@given(context=st.integers(2, 40))
def test_no_token_and_no_target_is_lost(shards: TokenShards, context: int) -> None:
    spans = WholeSpans.of(shards.train, context)
    assert spans.lengths.max() <= context
    # a piece of its end alone has nothing to learn
    whole = shards.train.document_lengths
    silent = int((whole % context == 1).sum())
    assert spans.lengths.sum() == shards.train.num_tokens - silent
    assert (spans.lengths - spans.ends).sum() == shards.train.num_tokens - len(whole)


@given(step=st.integers(0, 40), batch=st.integers(1, 12))
def test_a_steps_sequences_are_what_its_lengths_said(shards: TokenShards, step: int, batch: int) -> None:
    source, seed = WholeSequences(shards, SampleCount(batch), CONTEXT), 3
    lengths, num_targets = source.lengths(seed, step), 0
    assert len(lengths) == batch
    for number, length in enumerate(lengths):
        tokens, targets = source.sequence(seed, step, number, length)
        assert tokens.shape == targets.shape == (length,)
        counted = targets != IGNORED_TARGET
        num_targets += int(counted.sum())
        assert targets[:-1][counted[:-1]].tolist() == tokens[1:][counted[:-1]].tolist()
        assert bool(counted[-1]) == (int(tokens[-1]) != shards.end_id)
    assert source.num_targets(seed, step, lengths) == num_targets


def test_every_sequence_once_in_every_epoch(shards: TokenShards) -> None:
    source = WholeSequences(shards, SampleCount(5), CONTEXT)
    total = len(source.spans.lengths)
    seen = [length for step in range(-(-2 * total // 5)) for length in source.lengths(1, step)]
    assert sorted(seen[:total]) == sorted(source.spans.lengths.tolist()) == sorted(seen[total : 2 * total])
    assert seen[:total] != seen[total : 2 * total]


@given(batches=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_who_resumes_by_samples_goes_on_with_the_same_sequences(
    shards: TokenShards, batches: list[int]
) -> None:
    lengths, consumed = [], 0
    for step, batch in enumerate(batches):
        source = WholeSequences(shards, SampleCount(batch, step, consumed), CONTEXT)
        lengths += source.lengths(7, step)
        consumed += batch
    never_stopped = WholeSequences(shards, SampleCount(consumed), CONTEXT)
    assert tuple(lengths) == never_stopped.lengths(7, 0)


def test_groups_of_other_lengths_are_refused(shards: TokenShards) -> None:
    source = WholeSequences(shards, SampleCount(4), CONTEXT)
    with pytest.raises(ExecutionError, match="groups were made for"):
        source.sequence(0, 0, 0, source.lengths(0, 0)[0] + 1)


def test_documents_without_a_target_are_refused() -> None:
    class Ends(TokenSplit):
        """Documents of their end alone."""

        num_tokens, num_documents, has_answers = 3, 3, False
        document_lengths = np.ones(3, np.int64)

        def starts(self, first: int, count: int) -> np.ndarray:
            return np.arange(3)

    with pytest.raises(ExecutionError, match="a token to learn"):
        WholeSpans.of(object.__new__(Ends), 4)


def test_of_conversations_the_beginnings_are_learned_from() -> None:
    class Talks(TokenSplit):
        """Three conversations: an answer at once, one behind ten tokens, none."""

        num_tokens, num_documents, has_answers = 30, 3, True
        document_lengths = np.full(3, 10, np.int64)

        def starts(self, first: int, count: int) -> np.ndarray:
            return np.arange(3) * 10

        def answers(self, first: int, count: int) -> np.ndarray:
            every = np.zeros(31, bool)
            every[[2, 3, 19]] = True
            return every[first : first + count]

    spans = WholeSpans.of(object.__new__(Talks), 4)
    assert (spans.firsts.tolist(), spans.lengths.tolist(), spans.ends.tolist()) == ([0], [4], [False])
    spans = WholeSpans.of(object.__new__(Talks), 10)
    assert (spans.firsts.tolist(), spans.lengths.tolist(), spans.ends.tolist()) == (
        [0, 10],
        [10, 10],
        [True, True],
    )
