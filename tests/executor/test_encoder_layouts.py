"""Encoder-decoders in layouts equal one process in float64, and every rank computes, sends and holds the closed form of its
share. A smoke subset runs always; the other layouts of two and of four processes are slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.executor.models.encoder_decoder import build_encoder_decoder_stage
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.team.rank_team import RankTeam
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.verify import verify
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import MeshwrightError
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import GATHERED
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.mesh import device_order
from tests.covering import always, covering, product, slow_cases
from tests.executor.training.edge_case import edged_program
from tests.planned_case import BATCH, ENCODER, Planned, assert_equal_to_one_process, legal
from tests.training_case import SEQUENCE, SGD, largest_difference, reference

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
HALF = SEQUENCE // 2
MODEL = ModelSpec.decoder(8, 16, 2, num_kv_heads=1, vocabulary_size=32, max_sequence_length=SEQUENCE)


def planned(model: str = "encoder", clip: float = 0.0, dropout: float = 0.0, **choices: Any) -> Planned:
    return Planned(model, clip, dropout, choices=choices)


SMOKE = [
    planned(tp=2),
    planned(pp=2, tp=2, sequence_parallel=True, recompute="full", schedule="zb_h1"),
    planned("tied encoder", clip=0.1, tp=2, dp=2, sharding="zero3", sequence_parallel=True, recompute="selective"),
    planned("tied encoder", pp=2, tp=2, schedule="interleaved_1f1b"),
    planned(tp=2, dp=2, microbatch_size=2, token_parts=2, sharding="zero2"),
]  # fmt: skip
BESIDE = [
    planned("encoder experts", tp=2, sequence_parallel=True),
    planned("encoder experts", pp=2, dp=2, sharding="zero3"),
    planned(recompute="selective_op", tp=2, sequence_parallel=True, split_backward=True),
    planned(tp=2, microbatch_size=4, token_parts="3:1", dp=2, recompute="selective"),
    planned("tied encoder", pp=2, dp=2, schedule="zbv", sharding="zero3"),
    planned(pp=4, recompute="full"),
    planned(tp=2, dp=2, sharding="zero1", passes=("canonical_reduction",)),
]


@pytest.mark.parametrize("case", always(SMOKE, {1, 4}), ids=str)
def test_layouts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", BESIDE, ids=str)
def test_more_layouts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def matrix() -> Iterator[Planned]:
    """Layouts on two and four processes: a set that has every pair of choices that is legal."""
    factors = {
        "degrees": ((2, 1, 1), (1, 2, 1), (1, 1, 2), (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2)),
        "schedule": ("1f1b", "interleaved_1f1b", "zb_h1", "zbv"),
        "sequence_parallel": (False, True),
        "gathered": GATHERED,
        "sharding": ("none", "zero1", "zero2", "zero3"),
        "split_backward": (False, True),
        "recompute": ("none", "selective", "selective_op", "full"),
        "model": ("encoder", "tied encoder"),
    }
    rows, cases = [], []
    for row in product(factors):
        pp, dp, tp = row["degrees"]
        is_needless = (
            (tp == 1 and row["sequence_parallel"])
            or (row["gathered"] == "kept" and not row["sequence_parallel"])
            or (dp == 1 and row["sharding"] != "none")
            or (pp == 1 and row["schedule"] != "1f1b")
            or (row["schedule"] in ("zb_h1", "zbv") and row["split_backward"])
        )
        if not is_needless:
            rows.append(row)
            choices = {k: v for k, v in row.items() if k not in ("degrees", "model")}
            cases.append(planned(row["model"], pp=pp, dp=dp, tp=tp, **choices))
    yield from legal(cases[number] for number in covering(rows))


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(lambda: list(matrix())), ids=str)
def test_a_covering_set_of_layouts_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize(
    ("num_encoder_layers", "layout"),
    [
        (2, ("1f1b", 4, 6, "plain")),  # three stages of the decoder
        (3, ("gpipe", 2, 3, "split recompute", 2)),  # the encoder ends within a stage
        (2, ("dualpipe", 4, 6)),  # microbatches from both ends
    ],
    ids=str,
)
@pytest.mark.parametrize("is_tied", [False, True])
def test_whole_stages_equal_one_process(
    gloo_pool: Pool, is_tied: bool, num_encoder_layers: int, layout: tuple[Any, ...]
) -> None:
    model = MODEL.changed(num_encoder_layers=num_encoder_layers, has_tied_embeddings=is_tied)
    num_stages = layout[1]
    layers = split_layers(model.num_layers, num_stages)
    training = TrainingConfig(model, layers, SEQUENCE, SGD, source=RANDOM, records_gradients=True)
    of_table = {0, num_encoder_layers // layers[0], num_stages - 1}
    program = edged_program(training, *layout, tied=tuple(sorted(of_table)) if is_tied else ())
    for host in HOSTS:
        verify(program, host)
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    num_samples = len(program.tables.microbatches) * program.axis("dp").size
    expected = reference(model, SGD, num_samples, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE


@pytest.mark.slow
def test_draws_do_not_know_the_layout(gloo_pool: Pool) -> None:
    layouts = [
        planned(dropout=0.3),
        planned(dropout=0.3, pp=2, tp=2),
        planned(dropout=0.3, tp=2, dp=2, sequence_parallel=True, recompute="full"),
    ]
    first, *others = [case.run(gloo_pool, ITERATIONS) for case in layouts]
    for other in others:
        assert other.losses == pytest.approx(first.losses, rel=TOLERANCE)
        assert largest_difference(other.gradients[0], first.gradients[0]) < TOLERANCE


NUM_ENCODER, NUM_DECODER = 2, 2  # blocks of ENCODER
HIDDEN, KEYS, INNER = ENCODER.hidden_size, ENCODER.attention.key_size, ENCODER.intermediate_size
SELF_PRODUCTS = HIDDEN * (HIDDEN + 2 * KEYS) + HIDDEN * HIDDEN + 3 * HIDDEN * INNER
CROSS_PRODUCTS = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS


@pytest.mark.parametrize(
    "choices", always([{"tp": 2}, {"tp": 2, "dp": 2, "sequence_parallel": True}], {0}), ids=str
)
def test_a_rank_computes_and_sends_its_share(choices: dict[str, Any], gloo_pool: Pool) -> None:
    """Of whole windows, half the tokens in every block: 6 FLOPs for a number of a matrix, 14 for one of a query and a key
    that it sees; sums and gathers of the stream pass a ring."""
    dp, is_divided = choices.get("dp", 1), choices.get("sequence_parallel", False)
    job, plan = planned(**choices).job(1)
    result = gloo_pool.run(replace(job, counts_flops=True), places=device_order(plan))
    tokens = BATCH * HALF / dp
    numbers = NUM_ENCODER * SELF_PRODUCTS + NUM_DECODER * (SELF_PRODUCTS + CROSS_PRODUCTS)
    numbers += HIDDEN * ENCODER.vocabulary_size
    core = (
        14 * HALF * HIDDEN
    )  # causal ones are products, which these short sequences are one block of; others a kernel
    expected = {
        "products": tokens * (6 * numbers + NUM_DECODER * core) / 2,
        "attention": tokens * (NUM_ENCODER + NUM_DECODER) * core / 2,
    }
    for rank in result.flops:
        assert rank == pytest.approx(expected, rel=0.01)
    whole = tokens * HIDDEN * 8  # of the stream in float64
    sums = 2 * NUM_ENCODER + 3 * NUM_DECODER  # of parts of blocks
    of_loss = 2 * tokens * 8  # the sum and the target's logit of every token
    if is_divided:  # the stream, gathered again for the backward, and what the encoder made, which is kept
        expected = {
            "ALL_GATHER": (3 * (sums + 1) + 1 + 1) * whole / 2,  # head, second table, encoder's output
            "REDUCE_SCATTER": (2 * (sums + 1) + 1 + 1) * whole / 2,
        }
    else:  # forward both tables, backward the head and the encoder's output; a ring passes a sum twice
        expected = {"ALL_REDUCE": 2 * (2 * (sums + 2) * whole + of_loss) / 2}
    for sent in result.sent_bytes:
        for name, size in expected.items():
            assert sent[name] == pytest.approx(size, rel=0.01), name


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("model", ["encoder", "tied encoder", "encoder experts"])
def test_a_device_holds_its_share_of_the_parameters(model: str, tp: int) -> None:
    """What the modules of every stage have is what a plan counts."""
    plan = planned(model, tp=tp, pp=2).plan()
    shard = TensorShard.evenly(plan.model, tp, 0)
    team = RankTeam(tuple(range(tp)), 0)
    parallel = TensorParallel(shard, team) if tp > 1 else None
    for layers in plan.stages():
        blocks = range(layers.first_block, layers.first_block + layers.num_blocks)
        stage = build_encoder_decoder_stage(
            plan.model, blocks, layers.has_embedding, layers.has_head, parallel=parallel
        )
        assert sum(p.numel() for p in stage.parameters()) == sum(num_local_parameters(plan, layers))
    assert sum(parameter.num_elements for parameter in plan.model.parameters()) == plan.model.num_parameters


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"cp": 2}, "cp = 2 with the encoder-decoder"),
        ({"model": "encoder experts", "dp": 2, "ep": 2}, "ep = 2 with the encoder-decoder"),
        ({"token_parts": 2, "parts_of": "sequence"}, "parts_of sequence"),
        ({"pp": 2, "vocabulary": "one_barrier"}, "vocabulary"),
    ],
    ids=str,
)
def test_what_an_encoder_decoder_is_not_run_in_is_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(MeshwrightError, match=words):
        planned(**choices).plan()
