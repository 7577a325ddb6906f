"""Loss on answers only: every layout equals one process of plain torch that is given one conversation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.plain_decoder import PlainDecoder
from tests.executor.packed_reference import check_against_documents_alone, document_losses
from tests.executor.token_data import NumberTokenization, write_documents
from tests.planned_case import BATCH, GRADIENTS, Planned
from tests.training_case import ADAMW, SEQUENCE, Case, program_of, training_of

from meshwright.executor import run_training
from meshwright.executor.data.packing import UNLEARNED, PackedSequences, SampleCount
from meshwright.executor.data.shard_writer import make_shards
from meshwright.executor.data.text_source import TextPiece
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.data.tokenization import EncodedPiece
from meshwright.executor.job.pool import Pool
from meshwright.specs.training.source import Source

ITERATIONS = 3


class AnswerTokenization(NumberTokenization):
    """Numbers with a minus before them are answers."""

    def encode(self, pieces: Sequence[TextPiece]) -> list[EncodedPiece]:
        rows = [np.array(piece.data.split(), dtype=np.int64) for piece in pieces]
        return [EncodedPiece(np.abs(row).astype(np.uint32), row < 0) for row in rows]


def _turns(number: int) -> list[int]:
    """A question and an answer, once or twice, of other lengths each; every seventh is longer than a sequence."""
    lengths = [1 + number % 4, 1 + number * number % 5, 2, 1] if number % 2 else [1 + number % 6, 2]
    if number % 7 == 0:
        lengths[-1] = 2 * SEQUENCE
    signs = [1 - 2 * (turn % 2) for turn, length in enumerate(lengths) for _ in range(length)]
    return [sign * (1 + (number * 5 + i) % 31) for i, sign in enumerate(signs)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Conversations, some of which are cut, in which answers are less than half of all tokens of a batch."""
    folder = tmp_path_factory.mktemp("chats")
    source = write_documents(folder / "numbers.jsonl", [_turns(number) for number in range(60)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.executor.data.shard_writer.HELD_OUT_SHARE", 0.3)
        made = make_shards(source, AnswerTokenization(32), folder / "shards")
    _, targets = PackedSequences(made, SampleCount(BATCH)).batch(0, 0, range(BATCH), SEQUENCE)
    counts = [int((row >= 0).sum()) for row in targets]
    assert (targets == UNLEARNED).any() and len(set(counts)) > 2  # samples weigh differently
    return made


LAYOUTS = [
    Planned(choices={"pp": 2, "dp": 2}),
    pytest.param(
        Planned("qwen", choices={"tp": 2, "sequence_parallel": True}), marks=pytest.mark.slow, id="sequence_parallel"
    ),
    Planned("qwen", choices={"tp": 2}),
    Planned("gpt", choices={"cp": 2}),
    Planned(choices={"pp": 2, "vocabulary": "two_barriers"}),
    pytest.param(
        Planned("tied", choices={"pp": 2, "vocabulary": "one_barrier"}), marks=pytest.mark.slow, id="one-barrier"
    ),
    pytest.param(
        Planned("gpt", choices={"dp": 4, "sharding": "zero3"}), marks=pytest.mark.slow, id="zero3-dp=4"
    ),
    pytest.param(
        Planned(choices={"cp": 2, "pp": 2, "microbatch_size": 4, "token_parts": 2}),
        marks=pytest.mark.slow,
        id="parts-cp=2-pp=2",
    ),
    pytest.param(
        Planned(choices={"tp": 2, "pp": 2, "token_parts": "1:3", "parts_of": "sequence"}),
        marks=pytest.mark.slow,
        id="chunks-tp=2-pp=2",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_layouts_equal_conversations_alone(case: Planned, shards: TokenShards, gloo_pool: Pool) -> None:
    check_against_documents_alone(case, shards, gloo_pool, ITERATIONS)


def test_the_held_out_loss_is_over_answers_of_its_own_data(
    shards: TokenShards, gloo_pool: Pool, tmp_path: Path
) -> None:
    case = Case("1f1b", 2, 2, num_replicas=2, optimizer=ADAMW)
    given = replace(write_documents(tmp_path / "own.jsonl", [_turns(n) for n in range(60, 80)]), share=0.0)
    own = make_shards(given, AnswerTokenization(32), tmp_path / "own")
    source = Source(str(shards.folder), evaluate_data=str(own.folder), evaluate_every=1, num_evaluated=1)
    result = run_training(
        program_of(case), replace(training_of(case), source=source), 1, pool=gloo_pool, dtype="float64"
    )
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(case.model)
    finally:
        torch.set_default_dtype(torch.float32)
    plain.load_state_dict(dict(result.parameters))
    tokens_BS, targets_BS = PackedSequences(own, SampleCount(4)).held_out_windows(range(4), 4, SEQUENCE)
    with torch.no_grad():
        expected = float(document_losses(plain, tokens_BS, targets_BS) / (targets_BS >= 0).sum())
    assert result.iterations[0].held_out_loss == pytest.approx(expected, abs=GRADIENTS)
