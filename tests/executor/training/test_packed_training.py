"""Training on packed documents: every layout equals one process of plain torch that is given one document at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.plain_decoder import PlainDecoder
from tests.executor.packed_reference import check_against_documents_alone, document_losses
from tests.executor.token_data import shards_of
from tests.planned_case import BATCH, GRADIENTS, Planned
from tests.training_case import ADAMW, SEQUENCE, Case, program_of, training_of

from meshwright.executor import run_training
from meshwright.executor.data.packing import PackedSequences, SampleCount
from meshwright.executor.data.sequence_span import spans_of
from meshwright.executor.data.token_shard import TokenShards
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.specs.error import MeshwrightError
from meshwright.specs.training.source import Source

ITERATIONS = 4
DOCUMENTS = [[1 + (n * n + i) % 31 for i in range(1 + n * n % 13)] for n in range(36)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Less than two epochs of `ITERATIONS` batches, in several shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.executor.data.shard_writer.SHARD_TOKENS", 40)
        patch.setattr("meshwright.executor.data.shard_writer.HELD_OUT_SHARE", 0.3)
        made = shards_of(tmp_path_factory.mktemp("packed"), DOCUMENTS, vocabulary_size=32)
    assert len(made.train.shards) > 2
    assert (
        spans_of(made.train, SEQUENCE).count < ITERATIONS * BATCH < 2 * spans_of(made.train, SEQUENCE).count
    )
    return made


LAYOUTS = [
    Planned(choices={"pp": 2}),
    Planned("gpt", choices={"pp": 2, "dp": 2, "schedule": "zb_h1"}),
    pytest.param(
        Planned("qwen", choices={"tp": 2, "dp": 2, "sequence_parallel": True, "sharding": "zero3"}),
        marks=pytest.mark.slow,
        id="zero3-tp=2-dp=2",
    ),
    Planned("qwen", choices={"tp": 2}),
    pytest.param(
        Planned("gpt", choices={"tp": 2, "sequence_parallel": True, "recompute": "full"}),
        marks=pytest.mark.slow,
        id="recompute-tp=2",
    ),
    Planned("tied", choices={"pp": 2, "vocabulary": "one_barrier"}),
    pytest.param(
        Planned(choices={"pp": 2, "dp": 2, "vocabulary": "two_barriers"}),
        marks=pytest.mark.slow,
        id="two_barriers-dp=2",
    ),
    Planned(choices={"pp": 2, "vocabulary": "interlaced"}),
    pytest.param(
        Planned(choices={"tp": 2, "microbatch_size": 4, "token_parts": "3:1"}),
        marks=pytest.mark.slow,
        id="parts-tp=2",
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
]


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_layouts_equal_documents_alone(case: Planned, shards: TokenShards, gloo_pool: Pool) -> None:
    check_against_documents_alone(case, shards, gloo_pool, ITERATIONS)


def _run(training: TrainingConfig, case: Case, iterations: int, pool: Pool) -> list[float]:
    return run_training(program_of(case), training, iterations, pool=pool, dtype="float64").losses


def test_resumed_by_samples_under_another_layout(shards: TokenShards, gloo_pool: Pool) -> None:
    """Without a learning rate the losses tell the samples: a second job goes on where the first one stopped."""
    still = replace(ADAMW, learning_rate=0.0)
    few, many = Case("1f1b", 2, 3, optimizer=still), Case("gpipe", 1, 3, num_replicas=2, optimizer=still)
    data = str(shards.folder)
    whole = _run(replace(training_of(few), source=Source(data)), few, 6, gloo_pool)
    resumed = replace(training_of(many), source=Source(data), first_step=2, first_sample=6)
    losses = _run(resumed, many, 2, gloo_pool)
    packed = PackedSequences(shards, SampleCount(3))
    counts = [packed.num_targets(0, step, SEQUENCE) for step in range(6)]
    for number, low in enumerate((2, 4)):
        expected = sum(whole[low + i] * counts[low + i] for i in (0, 1)) / sum(counts[low : low + 2])
        assert losses[number] == pytest.approx(expected, abs=GRADIENTS)


def test_the_held_out_loss_is_over_documents_alone(shards: TokenShards, gloo_pool: Pool) -> None:
    case = Case("1f1b", 2, 2, num_replicas=2, optimizer=ADAMW)
    training = replace(
        training_of(case), source=Source(str(shards.folder), evaluate_every=1, num_evaluated=1)
    )
    result = run_training(program_of(case), training, 1, pool=gloo_pool, dtype="float64")
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(case.model)
    finally:
        torch.set_default_dtype(torch.float32)
    plain.load_state_dict(dict(result.parameters))
    packed = PackedSequences(shards, SampleCount(4))
    tokens_BS, targets_BS = packed.held_out_windows(range(4), 4, SEQUENCE)
    assert (targets_BS < 0).any()
    with torch.no_grad():
        expected = float(document_losses(plain, tokens_BS, targets_BS) / (targets_BS >= 0).sum())
    assert result.iterations[0].held_out_loss == pytest.approx(expected, abs=GRADIENTS)


def test_bad_data_are_said_before_a_process_starts(tmp_path: Path, gloo_pool: Pool) -> None:
    case = Case("1f1b", 1, 1)
    few = shards_of(tmp_path, [[1, 2], [3] * 30], vocabulary_size=32)
    for data, message in ((tmp_path / "none", "there is no folder"), (few.folder, "do not fit into the")):
        training = replace(training_of(case), source=Source(str(data), evaluate_every=1))
        with pytest.raises(MeshwrightError, match=message) as caught:
            run_training(program_of(case), training, 1, pool=gloo_pool)
        assert "rank" not in str(caught.value)
