"""Pictures find in made-up rows what was put into them: the factor of a network, the host's floor, blocks of pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.chapter.__main__ import TERMS, drawn
from benchmarks.chapter.host import block_floor_ms
from benchmarks.chapter.network import by_members, by_slowest, implied_factor
from benchmarks.chapter.term import Block
from benchmarks.chapter.unexplained import is_strange
from tests.benchmarks.step_sample import step_row

from meshwright.costs.step.profile import packaged_step_profile
from meshwright.evidence.tables.job import job_of
from meshwright.evidence.tables.score import RowPrediction
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_program import simulated_s
from meshwright.specs.plan.software import EAGER_OPERATOR_S

NODES = {
    "gpus": 16,
    "dp": 16,
    "zero": 1,
    "extras": "Megatron-LM",
    "global_batch_seqs": 16,
    "micro_batch_seqs": 1,
}


def test_the_factor_of_a_network_is_found_in_a_step_that_has_it() -> None:
    row = step_row("a-1", 1.0, **NODES)
    job = job_of(row)
    made = predict(job.plan, job.cluster).made
    constants = packaged_step_profile().fit.of("h100")
    slowed = replace(constants, network_exchange=3.0 * constants.network_exchange, jitter=0.0)
    measured = replace(row, measured_s=simulated_s(made, slowed))
    assert implied_factor(measured) == pytest.approx(3.0, rel=0.01)
    assert implied_factor(replace(row, measured_s=1e-6)) is None


def test_the_root_and_crowding_part_with_the_number_of_nodes() -> None:
    assert by_slowest(1, 0.05) == 1.0
    assert by_slowest(1024, 0.05) == pytest.approx(1 + 0.05 * 31)
    assert by_members(1024) > 10 * by_slowest(1024, 0.05)


def test_the_floor_of_a_block_is_its_operators_and_exchanges_and_tensor_parallelism_adds_exchanges() -> None:
    alone = job_of(
        step_row("a-1", 1.0, extras="eager", global_batch_seqs=8, micro_batch_seqs=1, dp=8, zero=0)
    )
    split = job_of(
        step_row("a-2", 1.0, extras="eager", global_batch_seqs=8, micro_batch_seqs=1, dp=4, tp=2, zero=0)
    )
    assert alone.plan.software_class.operator_s == EAGER_OPERATOR_S
    assert 20 * EAGER_OPERATOR_S * 1e3 < block_floor_ms(alone) < block_floor_ms(split)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"gpus": 16, "tp": 2, "pp": 2, "dp": 4}, True),
        ({"gpus": 8, "tp": 2, "pp": 2, "dp": 2}, False),  # one node
        ({"gpus": 16, "tp": 2, "pp": 1, "dp": 8}, False),
        ({"gpus": 16, "tp": 1, "pp": 2, "dp": 8}, False),
        ({"gpus": 16, "tp": 2, "pp": 4, "dp": 2}, False),  # one block a stage
    ],
)
def test_blocks_not_explained_are_of_pipelines_over_nodes_with_two_blocks_a_stage(
    fields: dict[str, int], expected: bool
) -> None:
    row = step_row(
        "a-1", 1.0, layers=4, global_batch_seqs=16, micro_batch_seqs=1, extras="Megatron-LM", **fields
    )
    assert is_strange(Block.of((row, RowPrediction("a-1", 1.0, 1.0)))) is expected


def test_terms_without_rows_are_told_and_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    names = {term.name for term in drawn([(step_row("a-1", 1.0), RowPrediction("a-1", 1.0, 1.0, 0.9, 1.2))])}
    assert {"networks", "interval parts", "interval coverage"} <= names
    told = capsys.readouterr().err
    assert len(names) + len(told.splitlines()) == len(TERMS)
    assert "unexplained.blocks" in told
