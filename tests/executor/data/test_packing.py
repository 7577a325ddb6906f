"""Packed sequences: every one once an epoch, the same samples under any layout and after any stop, documents marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.token_data import shards_of

from meshwright.executor.data.packing import PackedSequences, SampleCount, documents_of
from meshwright.executor.data.sequence_span import spans_of
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.specs.error import ExecutionError

LENGTH = 8
DOCUMENTS = [[1 + n % 97] * (1 + n * n % 23) for n in range(90)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return shards_of(tmp_path_factory.mktemp("packing"), DOCUMENTS)


def _stream(shards: TokenShards, count: SampleCount, num_steps: int, parts: list[int]) -> list[list[int]]:
    """Tokens of all samples in order, each step read in parts of these sizes, as replicas and microbatches do."""
    packed = PackedSequences(shards, count)
    rows: list[list[int]] = []
    for step in range(count.first_step, count.first_step + num_steps):
        edges = np.cumsum([0, *parts])
        for low, high in zip(edges[:-1], edges[1:]):
            rows += packed.batch(7, step, range(low, high), LENGTH)[0].tolist()
    return rows


@given(batch=st.integers(1, 40))
def test_every_sequence_once_in_every_epoch(shards: TokenShards, batch: int) -> None:
    total = spans_of(shards.train, LENGTH).count
    rows = _stream(shards, SampleCount(batch), -(-2 * total // batch), [batch])
    cut = shards.train.read(0, total * LENGTH).reshape(total, LENGTH).tolist()
    assert sorted(rows[:total]) == sorted(cut) == sorted(rows[total : 2 * total])
    assert rows[:total] != rows[total : 2 * total]


@given(parts=st.lists(st.integers(1, 6), min_size=1, max_size=6), steps=st.integers(1, 4))
def test_the_order_knows_no_replicas_and_no_microbatches(
    shards: TokenShards, parts: list[int], steps: int
) -> None:
    count = SampleCount(sum(parts))
    assert _stream(shards, count, steps, parts) == _stream(shards, count, steps, [sum(parts)])


@given(batches=st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_resumed_by_samples_under_any_batch_is_uninterrupted(shards: TokenShards, batches: list[int]) -> None:
    """A job that stops after every step and goes on with another global batch sees the samples of one that never stopped."""
    rows, consumed = [], 0
    for step, batch in enumerate(batches):
        rows += _stream(shards, SampleCount(batch, step, consumed), 1, [batch])
        consumed += batch
    assert rows == _stream(shards, SampleCount(consumed), 1, [consumed])


def _plain(tokens: list[int], target: list[int], is_start: list[bool]) -> tuple[list[int], list[int]]:
    """Targets and starts of documents, token by token."""
    targets, starts, start = [], [], 0
    for place in range(len(tokens)):
        if place and is_start[place]:
            start = place
        starts.append(start)
        targets.append(IGNORED_TARGET if is_start[place + 1] else target[place])
    return targets, starts


@given(length=st.integers(1, 60), number=st.integers(0, 10_000))
def test_documents_are_marked_and_their_ends_have_no_target(
    shards: TokenShards, length: int, number: int
) -> None:
    packed, whole = PackedSequences(shards, SampleCount(1)), PackedSequences(shards, SampleCount(1), False)
    tokens, targets = packed.batch(0, number, [0], length)
    all_tokens, all_targets = whole.batch(0, number, [0], length)
    assert torch.equal(tokens, all_tokens) and documents_of(all_targets) is None
    row = shards.train.read(0, shards.train.num_tokens).tolist()
    is_start = [place == 0 or row[place - 1] == 0 for place in range(len(row))]
    first = int(packed._sequences(0, number, [0], length)[0]) * length
    assert tokens[0].tolist() == row[first : first + length]
    assert all_targets[0].tolist() == row[first + 1 : first + length + 1]
    expected = _plain(tokens[0].tolist(), all_targets[0].tolist(), is_start[first : first + length + 1])
    found = documents_of(targets)
    assert targets[0].tolist() == expected[0]
    assert (found[0].tolist() if found is not None else [0] * length) == expected[1]


@pytest.mark.parametrize("document_mask", [True, False])
def test_targets_are_counted_without_reading(shards: TokenShards, document_mask: bool) -> None:
    packed = PackedSequences(shards, SampleCount(11, 3, 100), document_mask)
    for step in (3, 4, 90):
        _, targets = packed.batch(1, step, range(11), 20)
        assert packed.num_targets(1, step, 20) == int((targets != IGNORED_TARGET).sum())
    _, targets = packed.held_out_windows(range(2), 4, 5)
    assert packed.num_held_out_targets(range(2), 4, 5) == int((targets != IGNORED_TARGET).sum())
    assert (targets == IGNORED_TARGET).any() == document_mask


def test_held_out_sequences_are_always_the_same_and_never_trained_on(shards: TokenShards) -> None:
    packed = PackedSequences(shards, SampleCount(4))
    batches = list(packed.held_out_batches(5, LENGTH, 2))
    assert [len(tokens) for tokens, _ in batches] == [2, 2, 1]
    other = replace(packed, count=SampleCount(9, 5, 77))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, other.held_out_batches(5, LENGTH, 2)))
    total = spans_of(shards.held_out, LENGTH).count
    cut = shards.held_out.read(0, total * LENGTH).reshape(total, LENGTH).tolist()
    found = [row for tokens, _ in batches for row in tokens.tolist()]
    assert found[0] == cut[0] and found[-1] == cut[-1] and all(row in cut for row in found)


def test_too_little_text_is_said(shards: TokenShards) -> None:
    fits = shards.train.num_tokens - 1
    assert spans_of(shards.train, fits).count == 1
    with pytest.raises(ExecutionError, match=f"sequences up to {fits}"):
        PackedSequences(shards, SampleCount(1)).batch(0, 0, [0], fits + 1)
