"""Data of context-parallel ranks: a whole decoder on ranks that divide sequences is the decoder of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.executor import context_parallel as cp
from tests.executor.ops.relay.relays_in_process import by_scores, by_token_ring
from tests.executor.token_data import shards_of
from tests.planned_case import MODELS
from torch import Tensor

from meshwright import catalog
from meshwright.executor.models.decoder import DecoderStage, build_model
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.rank.handler import ValueName
from meshwright.executor.training.rank_batches import RankData
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import CONTEXTS
from meshwright.specs.training.source import Source
from meshwright.stage.mesh import data_axes

BATCH, LENGTH, TOLERANCE = 4, 8, 1e-12
CPU = torch.device("cpu")
ACTIVATION = ValueName("activation", 0, 0, 0)
ATTEND = {
    "ring": cp.by_ring,
    "all_gather": cp.by_gather,
    "ulysses": cp.by_heads,
    "token_ring": by_token_ring,
    "ring_self_attention": by_scores,
}
DOCUMENTS = [[1 + (n * n + i) % 31 for i in range(1 + n * n % 13)] for n in range(36)]


def ranks_of(
    model: str, source: Source, dropout: float = 0.0, length: int = LENGTH, **choices: object
) -> list[RankData]:
    """The data of all ranks of a plan."""
    degrees = [int(str(choices.get(axis, 1))) for axis in ("dp", "cp")]
    plan = Plan.of(
        MODELS[model],
        Cluster.detect(degrees[0] * degrees[1]),
        Workload(BATCH, length),
        dtype="float64",
        **choices,
    )
    training = TrainingConfig(
        plan.model, (plan.model.num_layers,), length, source=source, dropout=dropout, seed=7, first_step=3,
        layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    ).prepared()  # fmt: skip
    program = lower(plan, catalog.find_schedule(plan.schedule))
    for axis in program.axes[1:]:
        program = program.expand(axis.name)
    return [RankData(training, program, program.coordinates(rank)) for rank in range(plan.num_devices)]


def losses_of(stage: DecoderStage, group: list[RankData], attend: cp.Attend, microbatch: int) -> list[Tensor]:
    """A microbatch's loss on every rank that shares its sequences."""
    parts = [data.part for data in group]
    starts_BS = group[0].documents(microbatch, CPU)
    documents = None if starts_BS is None else DocumentMask(starts_BS)
    keys = [data.keys(microbatch) for data in group]
    begun = [
        stage.begin(data.tokens(microbatch, CPU)[0], documents, part)
        for data, part in zip(group, parts, strict=True)
    ]
    streams, turns = [x for x, _ in begun], [turn for _, turn in begun]
    if attend is cp.by_heads and turns[0] is not None:
        turns = [stage.turn(part.sequence_length, x.dtype, CPU, documents) for x, part in zip(streams, parts)]
    for block in stage.layers.values():
        qkvs = [block.qkv(block.attention_norm(x)) for x in streams]
        if block.query_norm is not None:
            qkvs = [block._normed_heads(qkv, block.query_norm, block.key_norm) for qkv in qkvs]
        attended = [block.attention_output(y) for y in attend(qkvs, turns, block.layout, parts, documents)]
        streams = [x + block.dropped(y, key, "attention") for x, y, key in zip(streams, attended, keys)]
        streams = [block.mlp_part(x, key) for x, key in zip(streams, keys)]
    return [
        token_cross_entropy(
            stage.head(stage.final_norm(x)), data.tokens(microbatch, CPU)[1], data.token_weight(microbatch)
        )
        for x, data in zip(streams, group)
    ]


def gradients_of(stage: DecoderStage, loss: Tensor) -> dict[str, Tensor]:
    stage.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in stage.named_parameters() if p.grad is not None}


def in_one_process(stage: DecoderStage, data: RankData) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for microbatch in range(len(data.counts)):
        tokens_BS, targets_BS = data.tokens(microbatch, CPU)
        logits_BSV = stage(tokens_BS, data.keys(microbatch), data.documents(microbatch, CPU))
        total = total + token_cross_entropy(logits_BSV, targets_BS, data.token_weight(microbatch))
    return total


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Source:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.executor.data.shard_writer.HELD_OUT_SHARE", 0.3)
        folder: Path = shards_of(tmp_path_factory.mktemp("packed"), DOCUMENTS, vocabulary_size=32).folder
    return Source(str(folder))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    ("model", "is_packed"), [("llama", True), ("gpt", False), ("gpt", True), ("qwen", False)]
)
def test_ranks_that_divide_sequences_are_one_process(
    context: str, model: str, is_packed: bool, packed: Source
) -> None:
    """Loss and every gradient, with dropout: positions, documents, draws and weights are those of the whole sequence."""
    source = packed if is_packed else RANDOM
    stage = build_model(MODELS[model], torch.float64, dropout=0.2)
    (alone,) = ranks_of(model, source, 0.2, microbatch_size=2)
    expected = in_one_process(stage, alone)
    assert not is_packed or any(alone.documents(m, CPU) is not None for m in range(len(alone.counts)))
    ranks = ranks_of(model, source, 0.2, microbatch_size=1, dp=2, cp=2, context=context)
    assert [data.replica for data in ranks] == [0, 0, 1, 1]
    found = torch.stack([
        loss
        for group in (ranks[:2], ranks[2:])
        for microbatch in range(len(group[0].counts))
        for loss in losses_of(stage, group, ATTEND[context], microbatch)
    ]).sum()  # fmt: skip
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=TOLERANCE)
    theirs, ours = gradients_of(stage, expected), gradients_of(stage, found)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=TOLERANCE)


def test_ranks_that_share_sequences_count_as_one_replica() -> None:
    whole, ranks = ranks_of("llama", RANDOM), ranks_of("llama", RANDOM, dp=2, cp=2)
    assert {data.num_replicas for data in ranks} == {2}
    assert {data.num_step_tokens for data in ranks} == {whole[0].num_step_tokens} == {BATCH * LENGTH}
    assert ranks[0].tokens(0, CPU)[0].shape == (1, LENGTH // 2)
    assert ranks[0].training.shape_of(ranks[0].counts, ACTIVATION, torch.float64) == (1, LENGTH // 2, 32)


def test_sequences_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PlanError, match="multiple of 4"):
        ranks_of("llama", RANDOM, length=6, cp=2)
    assert (
        ranks_of("llama", RANDOM, length=6, cp=2, context="ring", token_layout="contiguous")[1].part
        is not None
    )
