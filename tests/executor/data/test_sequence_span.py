"""Conversations packed whole: none is cut but those that no sequence holds, and these are counted."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.chat_data import (
    MARKED,
    conversation,
    tokens_by_transformers,
    write_chat_tokenizer,
    write_chats,
)

from meshwright.executor.data.chat_tokenization import ChatTokenization
from meshwright.executor.data.packing import UNLEARNED, PackedSequences, SampleCount, documents_of
from meshwright.executor.data.sequence_span import whole_documents
from meshwright.executor.data.shard_writer import make_shards
from meshwright.executor.data.text_source import TextSource
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET
from meshwright.specs.error import ExecutionError

NUMBERS = range(30)
Rows = list[tuple[list[int], list[bool]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenShards, Rows]:
    """Thirty conversations in several shards, and the tokens of those that are trained on, by transformers."""
    folder = tmp_path_factory.mktemp("chats")
    tokenizer = write_chat_tokenizer(folder / "small", MARKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.executor.data.shard_writer.SHARD_TOKENS", 200)
        source = TextSource.open(write_chats(folder / "chats.jsonl", NUMBERS)).in_lines()
        shards = make_shards(source, ChatTokenization(tokenizer), folder / "shards")
    assert len(shards.train.shards) > 2
    rows = [tokens_by_transformers(tokenizer, conversation(number)) for number in NUMBERS]
    starts = [*shards.train.starts(0, shards.train.num_tokens).tolist(), shards.train.num_tokens]
    trained = [shards.train.read(low, high - low).tolist() for low, high in itertools.pairwise(starts)]
    return shards, [next(row for row in rows if row[0] == tokens) for tokens in trained]


@given(length=st.integers(1, 150))
def test_sequences_are_whole_conversations(made: tuple[TokenShards, Rows], length: int) -> None:
    shards, rows = made
    most = length + 1
    kept = [row for row in rows if any(row[1][:most])]
    if not kept:
        with pytest.raises(ExecutionError, match="has an answer within its first"):
            whole_documents(shards.train, length)
        return
    found = whole_documents(shards.train, length)
    assert found.num_cut == sum(len(tokens) > most for tokens, _ in rows)
    assert found.num_lost == sum(max(0, len(tokens) - most) for tokens, _ in rows)
    assert found.num_silenced == len(rows) - len(kept)
    packed = PackedSequences(shards, SampleCount(found.count))
    tokens, targets = packed._packed(
        shards.train, torch.arange(found.count).numpy(), length
    )  # in their own order
    expected = iter(kept)
    for tokens_S, targets_S in zip(tokens.tolist(), targets.tolist()):
        place, is_first = 0, True
        while place < length:
            ids, answers = next(expected, ([], []))
            if not is_first and place + len(ids) > most:
                expected = itertools.chain([(ids, answers)], expected)
                ids = []
            if not ids:
                break
            own, said = ids[:most], [t if a else UNLEARNED for t, a in zip(ids, answers)][1:most]
            assert tokens_S[place : place + len(own)] == own[: length - place]
            assert targets_S[place : place + len(said)] == said
            place, is_first = place + len(own), False
        assert set(targets_S[place:]) <= {IGNORED_TARGET} and set(tokens_S[place:]) <= {shards.end_id}
    assert next(expected, None) is None
    steps = [packed.num_targets(0, step, length) for step in range(2)]
    assert steps == [max(1, int((targets >= 0).sum()))] * 2


def test_what_is_not_learned_ends_no_document(made: tuple[TokenShards, Rows]) -> None:
    shards, rows = made
    packed = PackedSequences(shards, SampleCount(1))
    tokens, targets = packed._packed(shards.train, torch.arange(1).numpy(), 150)
    first = len(rows[0][0])
    documents = documents_of(targets)
    assert documents is not None and (targets[0, : first - 1] == UNLEARNED).any()
    assert documents[0, :first].tolist() == [0] * first and int(documents[0, first]) == first
